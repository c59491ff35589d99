"""Which models make room: idle ones before busy ones, the least recently used first, and nobody in vain."""

from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.catalogue.eviction import Resident, choose_leavers

OLD = Resident("old", 10, 1.0, is_idle=True, may_drain=False)
NEW = Resident("new", 10, 2.0, is_idle=True, may_drain=False)
BUSY = Resident("busy", 30, 0.0, is_idle=False, may_drain=True)
FRESH = Resident("fresh", 90, 0.0, is_idle=False, may_drain=False)


def test_the_least_recently_used_idle_model_goes_first() -> None:
    assert choose_leavers([NEW, OLD, BUSY], 5, 0) == ["old"]
    assert choose_leavers([NEW, OLD, BUSY], 11, 0) == ["old", "new"]
    assert choose_leavers([NEW, OLD, BUSY], 0, 1) == ["old"]
    assert choose_leavers([NEW, OLD, BUSY], 21, 0) == ["old", "new", "busy"]


def test_nobody_goes_where_all_together_are_not_enough() -> None:
    assert choose_leavers([NEW, OLD, BUSY], 51, 0) == []
    assert choose_leavers([FRESH], 1, 0) == []
    assert choose_leavers([NEW], 0, 2) == []


residents = st.builds(
    Resident, st.uuids().map(str), st.integers(1, 100), st.floats(0, 10), st.booleans(), st.booleans()
)


@given(st.lists(residents, max_size=6), st.integers(0, 300), st.integers(0, 6))
def test_what_goes_is_enough_and_no_idle_model_stays_for_a_busy_one(
    loaded: list[Resident], num_bytes: int, num_models: int
) -> None:
    leavers = choose_leavers(loaded, num_bytes, num_models)
    gone = [each for each in loaded if each.name in leavers]
    assert all(each.is_idle or each.may_drain for each in gone)
    if leavers:
        assert sum(each.num_bytes for each in gone) >= num_bytes
        assert len(gone) >= num_models
        assert all(each.is_idle for each in gone) or all(each in gone for each in loaded if each.is_idle)
