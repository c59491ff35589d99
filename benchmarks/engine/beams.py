"""Random likeliest next tokens of beams, without a model.

The scheduler's beam search continues with them, as with a model's. Knows no blocks.
"""

import math
from array import array
from random import Random

from pyllm.wire.messages import Logprobs, Sampled


class Candidates:
    """Draws `2 * width` candidates for each sampled token, the number for a beam search of this width."""

    def __init__(self, width: int) -> None:
        self._number = 2 * width
        self._random = Random(0)

    def draw(self, sampled: Sampled) -> Logprobs:
        """Columns for `Scheduler.commit`: for each token its own entry, then its candidates."""
        num_tokens = len(memoryview(sampled.tokens).cast("B")) // 4
        num_rows = len(memoryview(sampled.starts).cast("B")) // 4 - 1
        values = [value for _ in range(num_tokens) for value in self._draw_scores()]
        ids, ranks = [0, *range(self._number)] * num_tokens, [1, *range(1, self._number + 1)] * num_tokens
        starts = range(0, (self._number + 1) * num_tokens + 1, self._number + 1)
        return Logprobs(
            prompt_starts=bytes(4 * (num_rows + 1)),
            prompt_tokens=b"",
            starts=array("i", starts).tobytes(),
            ids=array("i", ids).tobytes(),
            values=array("f", values).tobytes(),
            ranks=array("i", ranks).tobytes(),
        )

    def _draw_scores(self) -> list[float]:
        """Log-probabilities of the most probable tokens: geometric, at times peaked and at times flat."""
        rest = self._random.uniform(0.05, 0.7)
        best = [math.log(1 - rest) + rank * math.log(rest) for rank in range(self._number)]
        return [best[0], *best]
