"""One load: sends requests when they are due, at bounded concurrency, until all have ended or it is cancelled.

Knows neither prompts nor figures.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence

import msgspec

from pyllm.bench.answer_reading import RequestRecord, read_answer
from pyllm.bench.load_client import Clock, Exchange, LoadClient

# Bytes of answers that are stored before they are parsed: without a limit a long run would fill the memory.
_MAX_NOTED = 256 << 20
_MAX_OPENED_AHEAD = 1024


class Timed(msgspec.Struct, frozen=True):
    """A request's head and body, and the time at which it is due, in seconds from the load's begin."""

    request: bytes
    due: float = 0.0


class LoadResult(msgspec.Struct, frozen=True):
    """The result of a load that took `seconds`. Times in `records` count from its begin.

    `unfinished` counts the requests that an interrupt ended or left unsent. `client_cores` is this process's CPU time
    per second: close to 1, the client itself may limit the load.
    """

    records: list[RequestRecord]
    seconds: float
    client_cores: float
    unfinished: int = 0


async def run_load(
    client: LoadClient,
    requests: Sequence[Timed],
    max_concurrency: int | None = None,
    *,
    seconds_each: float | None = None,
    ended: Callable[[], object] = lambda: None,
    clock: Clock = time.perf_counter,
) -> LoadResult:
    """Send all requests. Cancelling the task ends the load; the result then has the requests that had ended.

    A request fails after `seconds_each`; `ended` is called when one ends. `clock` must be the client's.
    """
    at_once = min(len(requests), max_concurrency or len(requests))
    # At a rate, the concurrency is not known in advance: connections open as they are needed.
    if at_once == max_concurrency or not requests[-1].due:
        await client.open(min(at_once, _MAX_OPENED_AHEAD))
    load = _Load(client, seconds_each, ended, clock)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # A garbage collection during the load would be measured as the server's delay.
    try:
        await load.run(requests, max_concurrency)
    finally:
        if collecting:
            gc.enable()
    return load.result(len(requests))


class _Load:
    """A running load."""

    def __init__(self, client: LoadClient, timeout: float | None, ended: Callable[[], object], clock: Clock) -> None:
        self._client = client
        self._timeout = timeout
        self._ended = ended
        self._clock = clock
        self._noted: list[tuple[int, float, Exchange]] = []
        self._noted_bytes = 0
        self._records: list[RequestRecord] = []
        self._begin = 0.0
        self._seconds = 0.0
        self._cpu = 0.0

    async def run(self, requests: Sequence[Timed], max_concurrency: int | None) -> None:
        free = asyncio.Semaphore(max_concurrency or len(requests))
        tasks = set[asyncio.Task[None]]()
        cpu = time.process_time()
        self._begin = self._clock()
        try:
            for index, timed in enumerate(requests):
                wait = self._begin + timed.due - self._clock()
                if wait > 0:
                    await asyncio.sleep(wait)
                await free.acquire()
                task = asyncio.create_task(self._send(index, timed, free))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._seconds = self._clock() - self._begin
            self._cpu = time.process_time() - cpu

    def result(self, number: int) -> LoadResult:
        self._read_noted()
        records = sorted(self._records, key=lambda record: record.prompt)
        cores = self._cpu / self._seconds if self._seconds else 0.0
        return LoadResult(records, self._seconds, cores, number - len(records))

    async def _send(self, index: int, timed: Timed, free: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                exchange = await self._client.send(timed.request)
        except TimeoutError:
            exchange = Exchange()
            exchange.sent = self._clock()
            exchange.failure = f"no whole answer within {self._timeout:g} s"
        finally:
            free.release()
        self._noted.append((index, timed.due, exchange))
        self._noted_bytes += exchange.num_bytes
        if self._noted_bytes > _MAX_NOTED:
            self._read_noted()
        self._ended()

    def _read_noted(self) -> None:
        for index, due, exchange in self._noted:
            exchange.sent -= self._begin
            exchange.pieces = [(now - self._begin, piece) for now, piece in exchange.pieces]
            self._records.append(read_answer(index, due, exchange))
        self._noted.clear()
        self._noted_bytes = 0
