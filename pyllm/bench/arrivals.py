"""When requests are sent: all at once, or at a rate whose gaps follow a gamma distribution, as in vLLM. No clock."""

import math
from typing import Literal

import msgspec
import numpy as np

Ramp = Literal["linear", "exponential"]


class Arrivals(msgspec.Struct, frozen=True):
    """A rate in requests/s, and how even the gaps are: `burstiness` 1 is a Poisson process, less is burstier.

    With a `ramp` the rate goes from `start` to `end` over the requests, and `rate` does not count.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    ramp: Ramp | None = None
    start: float = 0.0
    end: float = 0.0

    def times(self, number: int, seed: int = 0) -> list[float]:
        """Seconds from the load's begin to each of so many requests, in order.

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
