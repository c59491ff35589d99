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
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # A garbage collection during the load would be measured as the server's delay.
    cpu, begin = time.process_time(), clock()
    answers = _Answers(begin)
    free, tasks = asyncio.Semaphore(at_once), set[asyncio.Task[None]]()

    async def send(index: int, timed: Timed) -> None:
        try:
            async with asyncio.timeout(seconds_each):
                exchange = await client.send(timed.request)
        except TimeoutError:
            exchange = Exchange()
            exchange.sent = clock()
            exchange.failure = f"no whole answer within {seconds_each:g} s"
        finally:
            free.release()
        answers.note(index, timed.due, exchange)
        ended()

    try:
        for index, timed in enumerate(requests):
            if (wait := begin + timed.due - clock()) > 0:
                await asyncio.sleep(wait)
            await free.acquire()
            task = asyncio.create_task(send(index, timed))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        seconds, cpu = clock() - begin, time.process_time() - cpu
        if collecting:
            gc.enable()
    records = answers.records()
    return LoadResult(records, seconds, cpu / seconds if seconds else 0.0, len(requests) - len(records))


class _Answers:
    """Answers as they came, which are parsed when the load has ended, or when they fill the memory."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._noted: list[tuple[int, float, Exchange]] = []
        self._num_bytes = 0
        self._records: list[RequestRecord] = []

    def note(self, index: int, due: float, exchange: Exchange) -> None:
        self._noted.append((index, due, exchange))
        self._num_bytes += exchange.num_bytes
        if self._num_bytes > _MAX_NOTED:
            self._read()

    def records(self) -> list[RequestRecord]:
        self._read()
        return sorted(self._records, key=lambda record: record.prompt)

    def _read(self) -> None:
        for index, due, exchange in self._noted:
            exchange.sent -= self._begin
            exchange.pieces = [(now - self._begin, piece) for now, piece in exchange.pieces]
            self._records.append(read_answer(index, due, exchange))
        self._noted.clear()
        self._num_bytes = 0
