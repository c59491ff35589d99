"""Request rates: arrival times of one load, with gamma-distributed gaps as in vLLM; and the search for the knee.

The knee is the highest rate at which a server still meets its targets. Knows no clock; sends nothing.
"""

import math

import msgspec
import numpy as np

from pyllm.bench.bench_defaults import BURSTINESS, REQUEST_RATE, Ramp

_LOWEST = 8  # the search goes down to the start rate divided by this
_PRECISION = 1.1  # the ratio of the two rates at which it ends


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


def next_rate(knee: float | None, broke: float, start: float, end: float) -> float | None:
    """The next rate of the search for the knee, or None at its end.

    `knee` is the highest rate that held, None where none did; `broke` the lowest that did not, infinite where all held.
    The search doubles the rate from `start` until the targets break or `end` holds, then halves the gap by ratio, until
    both differ by 10 % at most. If `start` itself breaks it goes down instead, to `start` / 8.
    """
    if knee is None and math.isinf(broke):
        return start
    if knee is None:
        return broke / 2 if broke > start / _LOWEST else None
    if math.isinf(broke):
        return min(2 * knee, end) if knee < end else None
    return math.sqrt(knee * broke) if broke > knee * _PRECISION else None
