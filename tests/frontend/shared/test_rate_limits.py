"""Budgets hold in any window, whatever comes when; debts are paid; memory has an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.config.api_keys import Allowance
from pyllm.frontend.shared.messages import Refused
from pyllm.frontend.shared.rate_limits import CONCURRENT_RETRY, MINUTE, RateLimits


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refusal(answer: Refused | None) -> tuple[str, float | None]:
    assert answer is not None
    return answer.reason, answer.retry_after


def test_requests_per_minute(clock: Clock) -> None:
    limits = RateLimits(clock)
    allowance = Allowance(max_requests_per_minute=3)
    assert [limits.enter("a", allowance) for _ in range(3)] == [None] * 3
    assert refusal(limits.enter("a", allowance)) == ("requests", 20.0)
    assert limits.enter("b", allowance) is None  # an account of its own
    clock.now += 19.0
    reason, wait = refusal(limits.enter("a", allowance))
    assert reason == "requests"
    assert wait == pytest.approx(1.0)
    clock.now += 1.0
    assert limits.enter("a", allowance) is None


def test_a_refusal_takes_nothing(clock: Clock) -> None:
    limits = RateLimits(clock)
    allowance = Allowance(max_requests_per_minute=2, max_concurrent_requests=1)
    assert limits.enter("a", allowance) is None
    for _ in range(5):
        assert refusal(limits.enter("a", allowance)) == ("concurrent", CONCURRENT_RETRY)
    limits.leave("a", 0)
    assert limits.enter("a", allowance) is None
    assert refusal(limits.enter("a", allowance))[0] == "requests"


def test_output_counts_when_it_is_known_and_is_paid_back_first(clock: Clock) -> None:
    limits = RateLimits(clock)
    allowance = Allowance(max_tokens_per_minute=60)
    assert limits.enter("a", allowance) is None
    assert limits.charge("a", 20) is None
    limits.leave("a", 100)  # 60 below what there was
    assert limits.enter("a", allowance) is None
    reason, wait = refusal(limits.charge("a", 10))
    assert (reason, wait) == ("tokens", pytest.approx(70.0))
    clock.now += 70.0
    assert limits.charge("a", 10) is None


def test_what_is_more_than_the_whole_budget_is_told_so(clock: Clock) -> None:
    limits = RateLimits(clock)
    limits.enter("a", Allowance(max_tokens_per_minute=60))
    refused = limits.charge("a", 61)
    assert refused is not None
    assert refused.retry_after is None
    assert "61 tokens" in refused.text
    assert "can never run" in refused.text


def test_what_remains_is_told(clock: Clock) -> None:
    limits = RateLimits(clock)
    limits.enter("a", Allowance(max_requests_per_minute=6, max_tokens_per_minute=60))
    limits.charge("a", 30)
    requests, tokens = limits.remaining("a")
    assert requests is not None
    assert tokens is not None
    assert (requests.limit, requests.remaining, requests.reset) == (6, 5, pytest.approx(10.0))
    assert (tokens.limit, tokens.remaining, tokens.reset) == (60, 30, pytest.approx(30.0))
    assert limits.remaining("unknown") == (None, None)


def test_without_limits_nothing_is_remembered(clock: Clock) -> None:
    limits = RateLimits(clock)
    assert limits.enter("a", Allowance()) is None
    limits.leave("a", 10)
    assert len(limits) == 0


def test_accounts_are_bounded_and_busy_ones_stay(clock: Clock) -> None:
    limits = RateLimits(clock, max_accounts=3)
    allowance = Allowance(max_requests_per_minute=1, max_concurrent_requests=1)
    assert limits.enter("busy", allowance) is None
    for number in range(50):
        assert limits.enter(str(number), allowance) is None
        limits.leave(str(number), 0)
        assert len(limits) <= 3
    assert refusal(limits.enter("busy", allowance))[0] == "requests"


EVENTS = st.lists(st.tuples(st.floats(0, 90), st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=60)


@given(EVENTS, st.integers(1, 40), st.integers(1, 40))
def test_no_window_has_more_than_the_budget_and_its_burst(
    events: list[tuple[float, int, int]], num_requests: int, num_tokens: int
) -> None:
    clock = Clock()
    limits = RateLimits(clock)
    allowance = Allowance(max_requests_per_minute=num_requests, max_tokens_per_minute=num_tokens)
    entered, prompts = [], []
    for pause, size, num_output in events:
        clock.now += pause
        if limits.enter("a", allowance) is None:
            entered.append((clock.now, 1))
            charged = limits.charge("a", size) is None
            if charged:
                prompts.append((clock.now, size))
            limits.leave("a", num_output if charged else 0)
    for granted, limit in ((entered, num_requests), (prompts, num_tokens)):
        for start, _ in granted:
            window = sum(amount for time, amount in granted if start <= time <= start + MINUTE)
            assert window <= 2 * limit  # the burst, and what comes back within the minute


@given(EVENTS, st.integers(1, 40))
def test_who_waits_as_told_gets_in(events: list[tuple[float, int, int]], num_tokens: int) -> None:
    clock = Clock()
    limits = RateLimits(clock)
    allowance = Allowance(max_tokens_per_minute=num_tokens)
    limits.enter("a", allowance)
    for pause, size, num_output in events:
        clock.now += pause
        refused = limits.charge("a", size)
        if refused is not None and refused.retry_after is not None:
            clock.now += refused.retry_after + 1e-6
            assert limits.charge("a", size) is None
        else:
            assert (refused is not None) == (size > num_tokens)
        limits.leave("a", num_output)
        limits.enter("a", allowance)
