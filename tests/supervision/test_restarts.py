from hypothesis import given
from hypothesis import strategies as st

from pyllm.supervision.restarts import LONGEST_DELAY, WINDOW, RestartBudget


def test_the_first_restart_is_at_once_and_each_further_one_waits_twice_as_long() -> None:
    budget = RestartBudget(5)
    assert [budget.take(0.0) for _ in range(6)] == [0.0, 0.1, 0.2, 0.4, 0.8, None]
    assert budget.take(WINDOW) == 0.0


@given(st.integers(0, 20), st.lists(st.floats(0, 30), max_size=60))
def test_no_window_has_more_than_the_budget(max_restarts: int, pauses: list[float]) -> None:
    budget, now, granted = RestartBudget(max_restarts), 0.0, []
    for pause in pauses:
        now += pause
        delay = budget.take(now)
        if delay is not None:
            assert 0.0 <= delay <= LONGEST_DELAY
            granted.append(now)
        else:
            assert len([time for time in granted if time > now - WINDOW]) == max_restarts
    for end in granted:
        assert len([time for time in granted if end - WINDOW < time <= end]) <= max_restarts
