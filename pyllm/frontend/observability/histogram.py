"""Histograms with the bounds of vLLM's dashboards."""

from bisect import bisect_left
from collections.abc import Sequence

FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
INTER_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_BOUNDS = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
NUM_SAMPLES_BOUNDS = (1, 2, 5, 10, 20)


class Histogram:
    """Counts of observations up to each bound; the last count is for those above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts, as Prometheus wants them."""
        total, buckets = 0, []
        for bound, count in zip([*map(float, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return buckets


def token_bounds(max_model_len: int) -> list[int]:
    """1, 2 and 5 times the powers of ten, up to the context's length."""
    bounds = []
    power = 1
    while power <= max_model_len:
        bounds += [power * step for step in (1, 2, 5) if power * step <= max_model_len]
        power *= 10
    return bounds
