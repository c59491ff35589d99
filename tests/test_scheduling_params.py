import pytest

from pyllm import SchedulingParams
from pyllm.errors import RequestError
from pyllm.scheduling_params import with_priority


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 2**31),
        ("priority", -(2**31) - 1),
        *((name, value) for name in ("timeout", "ttft_target", "tpot_target") for value in (0.0, -1.0)),
        ("timeout", float("nan")),
        ("data_parallel_rank", -1),
        ("timeout", float("inf")),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name) as refused:
        SchedulingParams(**{name: value})
    assert refused.value.parameter == name


def test_misspelt_name_fails() -> None:
    with pytest.raises(TypeError, match="time_out"):
        SchedulingParams(time_out=3)  # type: ignore[call-arg]


def test_a_priority_of_its_own_takes_the_place_of_the_other() -> None:
    scheduling = SchedulingParams(priority=5, tenant="acme")
    assert with_priority(scheduling, None) == scheduling
    assert with_priority(scheduling, 0) == SchedulingParams(tenant="acme")
    with pytest.raises(RequestError, match="priority"):
        with_priority(scheduling, 2**31)
