"""The search finds the knee of any server whose targets break at some rate, and says so where there is none."""

from hypothesis import given
from hypothesis import strategies as st

from pyllm.bench.knee import KneeSearch


def search(start: float, end: float, breaks_at: float) -> KneeSearch:
    knee = KneeSearch(start, end)
    for rate in knee.rates():
        assert len(knee.steps) < 40
        knee.report(rate, rate < breaks_at)
    return knee


@given(st.floats(0.1, 100), st.floats(0.01, 1e4), st.floats(1, 1e4))
def test_the_knee_is_just_below_the_break(start: float, breaks_at: float, span: float) -> None:
    end = start * span
    knee = search(start, end, breaks_at)
    if breaks_at > end:
        assert knee.unbroken
        assert knee.knee == end
    elif knee.knee is None:
        assert breaks_at <= start / 8
    else:
        assert knee.knee < breaks_at <= knee.knee * 1.1 * (1 + 1e-9)


def test_steps_double_and_then_close_in() -> None:
    assert [step.rate for step in search(1.0, 100.0, 5.0).steps][:4] == [1.0, 2.0, 4.0, 8.0]
    assert [step.rate for step in search(1.0, 3.0, 100.0).steps] == [1.0, 2.0, 3.0]


def test_one_lucky_step_above_a_broken_one_does_not_count() -> None:
    knee = KneeSearch(1.0, 100.0)
    for rate, held in ((1.0, True), (2.0, False), (4.0, True)):
        knee.report(rate, held)
    assert knee.knee == 1.0
    assert not knee.unbroken
