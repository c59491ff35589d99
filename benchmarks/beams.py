"""Beam search over a model that is not there: which beams live on, step after step, by scores drawn at random.

It asks of the scheduler what a real one would: a fork for each further continuation, an abort for each beam that is
left behind. Knows nothing of blocks.
"""

import math
from array import array
from random import Random

from pyllm._rust import Scheduler

# What `Scheduler.take_deltas` gives.
Columns = tuple[bytes, ...]


class Search:
    """All requests' beams, `width` each. Add a request with as many samples."""

    def __init__(self, scheduler: Scheduler, width: int) -> None:
        self._scheduler = scheduler
        self._width = width
        self._random = Random(0)
        self._scores: dict[int, dict[int, float]] = {}  # request, sample: log-probability

    def after_step(self, columns: Columns) -> None:
        """Choose among the continuations of every request whose beams have all got a token and go on."""
        requests, samples, finishes = array("Q", columns[0]), array("i", columns[1]), columns[5]
        going_on: dict[int, set[int]] = {}
        for request, sample, finish in zip(requests, samples, finishes, strict=True):
            if finish == 0:
                going_on.setdefault(request, set()).add(sample)
        for request, beams in going_on.items():
            if len(beams) == self._width:
                self._choose(request, sorted(beams))

    def _choose(self, request: int, beams: list[int]) -> None:
        """Keep the best continuations. A beam's most probable token is the one that it has sampled already."""
        scores = self._scores.get(request, {})
        candidates = [
            (scores.get(beam, 0.0) + score, beam, rank)
            for beam in beams
            for rank, score in enumerate(self._draw_scores())
        ]
        best = sorted(candidates, reverse=True)[: self._width]
        parents = {beam for _, beam, _ in best}
        kept: dict[int, float] = {}
        forks: list[tuple[float, int, int]] = []
        for score, beam, rank in best:
            if beam in kept:
                forks.append((score, beam, rank))
            else:
                kept[beam] = score  # a parent goes on itself, with its best continuation
        # Who is left behind makes room first, for those that are to come.
        for beam in beams:
            if beam not in parents:
                self._scheduler.abort(0, request, beam)
        for score, beam, rank in forks:
            kept[self._scheduler.fork(0, request, beam, rank)] = score
        self._scores[request] = kept

    def _draw_scores(self) -> list[float]:
        """Log-probabilities of the most probable tokens: geometric, at times peaked and at times flat."""
        rest = self._random.uniform(0.05, 0.7)
        return [math.log(1 - rest) + rank * math.log(rest) for rank in range(self._width)]
