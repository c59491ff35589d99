"""Streams of one client: as many at any time as are wanted, each held against its twin once it has ended.

Knows how to submit and what is in the pool; no machine and no fault.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyllm import SamplingParams
from pyllm.client import LogprobEntries, TokenDelta
from pyllm.errors import PyllmError
from pyllm.wire.messages import FinishCode
from tests.cluster.pool import PoolRequest
from tests.e2e.survival_streams import lost_and_repeated

SHORTEST_PAUSE = 1.0  # seconds without a token of a stream that has begun, below which it is no pause
# What the engine says of a request that was alone with what died.
BLAMED = re.compile(r"this request ended the (worker|engine core) that computed it \d+ times, the last \d+ alone")


class Sample(NamedTuple):
    """The output of one sample."""

    tokens: list[int]
    finish: FinishCode


class Pause(NamedTuple):
    """From one token of a stream to its next, by the monotonic clock."""

    begin: float
    end: float


class Stream:
    """The sink of one request. `last` is when it had something last, or began."""

    def __init__(self, request: PoolRequest, on_end: "Callable[[Stream], None]") -> None:
        self.request = request
        self.failure = ""
        self.has_ended = False
        self.pauses: list[Pause] = []
        self.begun = self.last = time.monotonic()
        self._on_end = on_end
        self._tokens: list[list[int]] = [[] for _ in range(request.params.n)]
        self._finishes = [FinishCode.NONE] * request.params.n

    @property
    def samples(self) -> list[Sample]:
        """What has come so far."""
        return [Sample(*parts) for parts in zip(self._tokens, self._finishes, strict=True)]

    @property
    def has_tokens(self) -> bool:
        """Whether anything has come so far."""
        return any(self._tokens)

    def delta(self, index: int, delta: TokenDelta) -> None:
        now = time.monotonic()
        if now - self.last > SHORTEST_PAUSE and self.has_tokens:
            self.pauses.append(Pause(self.last, now))
        self.last = now
        self._tokens[index] += delta.tokens
        self._finishes[index] = delta.finish
        if FinishCode.NONE not in self._finishes:
            self._end()

    def prompt_logprobs(self, index: int, logprobs: list[LogprobEntries]) -> None:
        raise AssertionError(f"nobody asked for log-probabilities of the prompt: {index}, {logprobs}")

    def error(self, error: PyllmError) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self._end()

    def _end(self) -> None:
        self.has_ended = True
        self._on_end(self)


# `EngineClient.submit`
Submit = Callable[[list[int], SamplingParams, Stream], object]


class Account:
    """What all streams have shown."""

    def __init__(self) -> None:
        self.streams: Counter[str] = Counter()  # by kind
        self.failed: Counter[str] = Counter()
        self.blamed: Counter[str] = Counter()  # by kind; only poisoned ones may be
        self.different: Counter[str] = Counter()
        self.tokens = self.lost = self.repeated = 0
        self.pauses: list[Pause] = []

    def enter(self, stream: Stream, twin: Sequence[Sample] | None) -> None:
        """A stream has ended; without a twin it is poisoned, and has to fail."""
        request = stream.request
        self.streams[request.kind] += 1
        self.pauses += stream.pauses
        self.tokens += sum(len(sample.tokens) for sample in stream.samples)
        if BLAMED.search(stream.failure):
            self.blamed[request.kind] += 1
        elif stream.failure or twin is None:
            self.failed[f"{request.kind}: {stream.failure or 'it has not failed'}"] += 1
        if twin is None or stream.failure:
            return
        for expected, seen in zip(twin, stream.samples, strict=True):
            lost, repeated = lost_and_repeated(expected.tokens, seen.tokens)
            self.lost += lost
            self.repeated += repeated
            if expected != seen:
                ends = f"{expected.finish.name} after {len(expected.tokens)} tokens"
                seen_ends = f"{seen.finish.name} after {len(seen.tokens)}"
                pairs = enumerate(zip(expected.tokens, seen.tokens, strict=False))
                begins = next((index for index, pair in pairs if pair[0] != pair[1]), "all")
                self.different[f"{request.name}: {begins} tokens are equal; {ends}, not {seen_ends}"] += 1

    @property
    def wrong(self) -> dict[str, int]:
        """What there must be none of."""
        innocent = sum(number for kind, number in self.blamed.items() if not kind.startswith("poison"))
        return {
            "lost": self.lost,
            "repeated": self.repeated,
            "different": self.different.total(),
            "failed": self.failed.total(),
            "innocent_blamed": innocent,
        }


class Load:
    """So many streams at any time from `begin` to `end`, of requests drawn from those that have a twin."""

    def __init__(
        self, submit: Submit, twins: Mapping[str, list[Sample]], pool: Sequence[PoolRequest], number: int, seed: int
    ) -> None:
        self.account = Account()
        self._submit = submit
        self._twins = twins
        self._pool = pool
        self._number = number
        self._choose = random.Random(seed)
        self._live: set[Stream] = set()
        self._goes_on = False
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._live)

    def begin(self) -> None:
        """Start them all."""
        self._goes_on = True
        for _ in range(self._number):
            self._start_next()

    async def end(self, timeout: float) -> int:  # noqa: ASYNC109 - what is left then is counted
        """Start no more, and wait for those that run; gives the number of those that have not ended."""
        self._goes_on = False
        self._look()
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            return len(self._live)
        return 0

    def start(self, request: PoolRequest) -> Stream:
        """Start one more, beside the others."""
        stream = Stream(request, self._take)
        self._live.add(stream)
        try:
            self._submit(request.prompt, request.params, stream)
        except PyllmError as error:
            stream.error(error)
        return stream

    def has_recovered(self, since: float) -> bool:
        """Whether every stream that had tokens by then has had some since, or has ended."""
        return all(stream.last > since for stream in self._live if stream.has_tokens)

    def _start_next(self) -> None:
        self.start(self._choose.choice(self._pool))

    def _take(self, stream: Stream) -> None:
        self._live.discard(stream)
        is_poisoned = stream.request.name not in self._twins
        self.account.enter(stream, None if is_poisoned else self._twins[stream.request.name])
        if self._goes_on and not is_poisoned:
            # Not from within the client, which is about to forget the one that has ended.
            asyncio.get_running_loop().call_soon(self._start_next)
        self._look()

    def _look(self) -> None:
        if not self._goes_on and not self._live:
            self._ended.set()


async def twins_of(submit: Submit, pool: Sequence[PoolRequest]) -> dict[str, list[Sample]]:
    """What each request gets where nothing goes wrong, by its name.

    Raises:
        RuntimeError: one failed.
    """
    done: asyncio.Queue[Stream] = asyncio.Queue()
    for request in pool:
        submit(request.prompt, request.params, Stream(request, done.put_nowait))
    twins = {}
    for _ in pool:
        stream = await done.get()
        if stream.failure:
            raise RuntimeError(f"{stream.request.name} failed where nothing went wrong: {stream.failure}")
        twins[stream.request.name] = stream.samples
    return twins
