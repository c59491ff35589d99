"""Ratios of two measurements, B to A, with 95 % confidence intervals. Pure functions.

For rounds of two servers in turn: Student's t of the logarithms of each round's ratio. For two saved runs: a bootstrap
over their requests, in pairs where both runs had the same prompts.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 2000
# Of 1 to 12 degrees of freedom.
_STUDENT_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.306, 2.2622, 2.2281, 2.201, 2.1788)


class Ratio(msgspec.Struct, frozen=True):
    """A ratio of B to A. `low` and `high` bound it; both are None where there is too little data for an interval."""

    a: float
    b: float
    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool | None:
        """Whether the interval excludes 1; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high


def ratio_of_rounds(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio from one figure per round. `a`, `b` and the ratio are geometric means; all values must be above 0."""
    logs = np.log(b) - np.log(a)
    mean = float(np.mean(logs))
    ratio = Ratio(_geometric_mean(a), _geometric_mean(b), math.exp(mean))
    if len(logs) < 2:
        return ratio
    half = student_t(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return msgspec.structs.replace(ratio, low=math.exp(mean - half), high=math.exp(mean + half))


def ratio_of_samples(a: Sequence[float], b: Sequence[float], percentile: float | None, *, paired: bool) -> Ratio:
    """The ratio of the means (percentile None) or a percentile of two runs' requests; deterministic."""
    first, second = np.asarray(a), np.asarray(b)
    value_a, value_b = float(_statistic(first, percentile)), float(_statistic(second, percentile))
    ratio = Ratio(value_a, value_b, value_b / value_a)
    if min(len(a), len(b)) < 2:
        return ratio
    generator = np.random.default_rng(0)
    chosen_a = generator.integers(len(first), size=(_RESAMPLES, len(first)))
    chosen_b = chosen_a if paired else generator.integers(len(second), size=(_RESAMPLES, len(second)))
    ratios = _statistic(second[chosen_b], percentile) / _statistic(first[chosen_a], percentile)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return msgspec.structs.replace(ratio, low=float(low), high=float(high))


def student_t(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's distribution; beyond the table by its expansion, to four digits."""
    if degrees <= len(_STUDENT_T):
        return _STUDENT_T[degrees - 1]
    return 1.95996 + 2.37227 / degrees + 2.8225 / degrees**2 + 2.55585 / degrees**3  # Abramowitz and Stegun, 26.7.5


def _statistic(values: Any, percentile: float | None) -> Any:
    return np.mean(values, axis=-1) if percentile is None else np.percentile(values, percentile, axis=-1)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))
