"""Texts to token ids off the event loop, with a cache of encoded texts. Knows no prompt."""

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

MAX_BYTES = 64 << 20
MAX_ENTRIES = 1 << 16
# Texts of at least so many characters use the thread for long work, so that no short text waits behind them.
LONG_CHARACTERS = 1 << 16
BATCH_CHARACTERS = 1 << 18  # of texts that are encoded in one call
MAX_ENCODING = 256  # requests whose texts are in the threads or wait for them; others wait outside
ENTRY_BYTES = 160  # of an entry beside its text and its ids: two objects and a place in the dictionary

P = ParamSpec("P")
T = TypeVar("T")

Encode = Callable[[list[str]], Sequence[bytes | Exception]]


class EncodingCounts(msgspec.Struct):
    """Tokens of texts that were looked up, and of those that were found."""

    num_queried: int = 0
    num_found: int = 0


class EncodingCache:
    """An LRU cache of texts' ids, within `max_bytes` (texts included) and `max_entries`."""

    def __init__(self, counts: EncodingCounts, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self.num_bytes = 0
        self._counts = counts
        self._full_size = self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._packed: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._packed)

    def get(self, text: str) -> bytes | None:
        """The packed ids of a text, if they are known."""
        packed = self._packed.get(text)
        if packed is not None:
            self._packed.move_to_end(text)
            self._counts.num_queried += len(packed) // 4
            self._counts.num_found += len(packed) // 4
        return packed

    def put(self, text: str, packed: bytes) -> None:
        """Add ids that were looked up and not found. A text that takes more than a quarter of the cache is left out."""
        self._counts.num_queried += len(packed) // 4
        size = _size(text, packed)
        if size > self._max_bytes // 4 or text in self._packed:
            return
        self._packed[text] = packed
        self.num_bytes += size
        self._evict()

    def resize(self, share: float) -> None:
        """Keep at most this share of the original `max_bytes`, the most recently used texts first."""
        self._max_bytes = int(share * self._full_size)
        self._evict()

    def _evict(self) -> None:
        while self.num_bytes > self._max_bytes or len(self._packed) > self._max_entries:
            self.num_bytes -= _size(*self._packed.popitem(last=False))


def _size(text: str, packed: bytes) -> int:
    return sys.getsizeof(text) + len(packed) + ENTRY_BYTES


class EncodingThreads:
    """Two threads, for long work and for short. The event loop is the one that first uses them.

    `encode` gives for each text its packed ids or an exception; it runs in the threads and releases the GIL.
    """

    def __init__(self, encode: Encode) -> None:
        self._short = _Lane(encode, "pyllm-encode-short")
        self._long = _Lane(partial(_one_by_one, encode), "pyllm-encode-long")
        self._room = asyncio.Semaphore(MAX_ENCODING)

    async def encode(self, texts: Sequence[str]) -> dict[str, bytes]:
        """The packed ids of each text. Waiting short texts share one call; a text that several wait for goes once.

        Raises:
            RequestError: a text is not valid; the error of the first such text.
        """
        async with self._room:
            lane = self._lane(sum(map(len, texts)))
            waiting = {text: lane.submit(text) for text in texts}
            await asyncio.wait(waiting.values())  # Others may wait for the same text: one's end must not cancel it.
            return {text: future.result() for text, future in waiting.items()}

    async def run(self, characters: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a call that takes as long as encoding so many characters; returns and raises as it does."""
        async with self._room:
            return await self._lane(characters).run(partial(work, *args, **options))

    def _lane(self, characters: int) -> "_Lane":
        return self._long if characters >= LONG_CHARACTERS else self._short


def _one_by_one(encode: Encode, texts: list[str]) -> list[bytes | Exception]:
    """Encode texts one at a time: a batch would take all processors, and hold up the streams for too long."""
    return [result for text in texts for result in encode([text])]


class _Lane:
    """One thread, and the texts that wait for it."""

    def __init__(self, encode: Encode, name: str) -> None:
        self._encode = encode
        self._thread = ThreadPoolExecutor(1, name)
        self._futures: dict[str, asyncio.Future[bytes]] = {}
        self._waiting: deque[str] = deque()
        self._is_encoding = False

    def submit(self, text: str) -> asyncio.Future[bytes]:
        future = self._futures.get(text)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._futures[text] = loop.create_future()
            self._waiting.append(text)
            if not self._is_encoding:
                self._is_encoding = True
                loop.call_soon(self._next_batch)  # Texts of the same turn of the loop join the batch.
        return future

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _next_batch(self) -> None:
        batch: list[str] = []
        characters = 0
        while self._waiting and (not batch or characters + len(self._waiting[0]) <= BATCH_CHARACTERS):
            batch.append(self._waiting.popleft())
            characters += len(batch[-1])
        self._is_encoding = bool(batch)
        if batch:
            job = asyncio.get_running_loop().run_in_executor(self._thread, self._encode, batch)
            job.add_done_callback(partial(self._deliver, batch))

    def _deliver(self, batch: list[str], job: "asyncio.Future[Sequence[bytes | Exception]]") -> None:
        failure = job.exception()
        results = job.result() if failure is None else [failure] * len(batch)
        for text, result in zip(batch, results, strict=True):
            future = self._futures.pop(text)
            if isinstance(result, bytes):
                future.set_result(result)
            else:
                future.set_exception(result)
                future.exception()  # Perhaps nobody waits for it any more.
        self._next_batch()
