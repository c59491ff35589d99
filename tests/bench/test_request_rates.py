"""Arrivals have the rate and the shape that was asked for; the search finds the knee, or says that there is none."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.bench.request_rates import Arrivals, next_rate

RATES = st.floats(0.01, 1e4)


@given(RATES, st.floats(0.05, 50), st.integers(1, 200), st.integers(0, 9))
def test_times_rise_and_end_by_the_rate(rate: float, burstiness: float, number: int, seed: int) -> None:
    times = Arrivals(rate, burstiness).times(number, seed)
    assert len(times) == number
    assert all(0 <= earlier <= later for earlier, later in zip([0.0, *times], times, strict=False))
    assert times[-1] == pytest.approx(number / rate)
    assert times == Arrivals(rate, burstiness).times(number, seed)


def test_no_rate_is_all_at_once_and_no_burst_is_even() -> None:
    assert Arrivals().times(3) == [0.0, 0.0, 0.0]
    assert Arrivals(4.0, math.inf).times(4) == pytest.approx([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_a_gamma_distribution(burstiness: float) -> None:
    """Its coefficient of variation is 1 / sqrt(shape): 1 for a Poisson process."""
    gaps = np.diff(Arrivals(10.0, burstiness).times(20_000))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


@given(st.sampled_from(["linear", "exponential"]), RATES, st.floats(1, 100), st.integers(2, 50))
def test_a_ramp_goes_from_one_rate_to_the_other(ramp: str, start: float, factor: float, number: int) -> None:
    arrivals = Arrivals(math.inf, math.inf, ramp, start, start * factor)  # type: ignore[arg-type]  # one of its names
    times = arrivals.times(number)
    gaps = np.diff([0.0, *times])
    assert gaps[0] == pytest.approx(1 / start)
    assert gaps[-1] == pytest.approx(1 / (start * factor))
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(gaps))


def search(start: float, end: float, breaks_at: float) -> tuple[float | None, float, list[float]]:
    """The highest rate that held and the lowest that broke, and the rates that were tried."""
    knee, broke, rates = None, math.inf, list[float]()
    while (rate := next_rate(knee, broke, start, end)) is not None:
        rates.append(rate)
        assert len(rates) < 40
        knee, broke = (rate, broke) if rate < breaks_at else (knee, rate)
    return knee, broke, rates


@given(st.floats(0.1, 100), st.floats(0.01, 1e4), st.floats(1, 1e4))
def test_the_knee_is_just_below_the_break(start: float, breaks_at: float, span: float) -> None:
    end = start * span
    knee, broke, _ = search(start, end, breaks_at)
    if breaks_at > end:
        assert broke == math.inf
        assert knee == end
    elif knee is None:
        assert breaks_at <= start / 8
    else:
        assert knee < breaks_at <= knee * 1.1 * (1 + 1e-9)


def test_steps_double_and_then_close_in() -> None:
    assert search(1.0, 100.0, 5.0)[2][:4] == [1.0, 2.0, 4.0, 8.0]
    assert search(1.0, 3.0, 100.0)[2] == [1.0, 2.0, 3.0]
