"""Request rates: arrival times of one load, with gamma-distributed gaps as in vLLM; and the search for the knee.

The knee is the highest rate at which a server still meets its targets. Knows no clock; sends nothing.
"""

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from pyllm.bench.bench_defaults import BURSTINESS, REQUEST_RATE, Ramp

_LOWEST = 8  # the search goes down to the start rate divided by this


class Arrivals(msgspec.Struct, frozen=True):
    """A rate in requests/s, and the evenness of the gaps: `burstiness` 1 is a Poisson process, less is burstier.

    With a `ramp` the rate goes from `start` to `end` over the requests, and `rate` is ignored.
    """

    rate: float = REQUEST_RATE
    burstiness: float = BURSTINESS
    ramp: Ramp | None = None
    start: float = 0.0
    end: float = 0.0

    def times(self, number: int, seed: int = 0) -> list[float]:
        """Seconds from the load's begin to each of `number` requests, in order.

        Without a ramp the last one is `number / rate` exactly, as in vLLM: seeds then differ in the gaps alone, not in
        the mean rate.
        """
        if self.ramp is None and math.isinf(self.rate):
            return [0.0] * number
        rates = self._rates(number)
        gaps = 1 / rates
        if not math.isinf(self.burstiness):
            generator = np.random.default_rng(seed)
            gaps = generator.gamma(self.burstiness, gaps / self.burstiness)
        times = np.cumsum(gaps)
        if self.ramp is None and times[-1] > 0:
            times *= number / self.rate / times[-1]
        listed: list[float] = times.tolist()
        return listed

    def _rates(self, number: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        share = np.arange(number) / max(number - 1, 1)
        if self.ramp == "linear":
            return self.start + (self.end - self.start) * share
        if self.ramp == "exponential":
            return self.start * (self.end / self.start) ** share
        return np.full(number, self.rate)


class KneeSearch:
    """Doubles the rate from `start` until the targets break or `end` holds, then halves the gap by ratio.

    Stops when the highest rate that held and the lowest that broke differ by `precision` at most. If `start` itself
    breaks it goes down instead, to `start` / 8. `knee` is the highest rate that held, None where none did; `broke` is
    the lowest that did not, infinite where all held.
    """

    def __init__(self, start: float, end: float, precision: float = 0.1) -> None:
        self.knee: float | None = None
        self.broke = math.inf
        self._start = start
        self._end = end
        self._precision = precision

    def rates(self) -> Iterator[float]:
        """The rates to try; call `report` for each before taking the next."""
        rate: float | None = self._start
        while rate is not None:
            yield rate
            rate = self._next()

    def report(self, rate: float, held: bool) -> None:
        """Record whether the targets held at a rate."""
        if held:
            self.knee = rate
        else:
            self.broke = rate

    def _next(self) -> float | None:
        if self.knee is None:
            return self.broke / 2 if self.broke > self._start / _LOWEST else None
        if math.isinf(self.broke):
            return min(2 * self.knee, self._end) if self.knee < self._end else None
        return math.sqrt(self.knee * self.broke) if self.broke > self.knee * (1 + self._precision) else None
