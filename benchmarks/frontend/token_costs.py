"""Tokens per CPU-second of the API process and of an `EngineClient`, over a core without a model.

The core, the readers and the measured process are separate. CPU time counts on all threads, from the start of all
streams until the first has ended; the cost of requests is a separate figure. Each figure is the best of some runs, as
other processes use the machine's caches. A token's delay is its time after the token before, minus a step's time.
"""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import uvloop

from benchmarks.frontend import stream_readers
from benchmarks.frontend.api_process import HOST, ApiProcess, api_process, core_process
from benchmarks.frontend.stream_readers import Load, Progress
from benchmarks.record import Record
from pyllm import SamplingParams
from pyllm.client.client import EngineClient
from pyllm.client.token_reader import TokenDelta

RUNS = 3
EVENTS_WITHOUT_TOKENS = 3  # in each stream: the role, the usage, [DONE]
CLIENT_ROWS = 256


class Case(NamedTuple):
    """The number of streams, a step every `interval` seconds, and the tokens of a stream."""

    streams: int
    interval: float
    tokens: int


# About 30,000 tokens a second, so that the readers, the core and the API process fit on two CPUs.
STREAMS = (Case(64, 0.002, 3000), Case(1000, 0.030, 250), Case(2000, 0.060, 150))
MANY = Case(5000, 0.150, 80)  # once
REQUESTS = Case(1000, 0.002, 1)
CLIENT = Case(CLIENT_ROWS, 0.001, 3000)


def streams() -> Iterator[Record]:
    for case in (*STREAMS, MANY):
        runs = [uvloop.run(_serve(case)) for _ in range(1 if case is MANY else RUNS)]
        events = runs[0].last.events - EVENTS_WITHOUT_TOKENS * case.streams
        tokens_per_event = case.streams * case.tokens / events
        events_per_second = max((run.ending.events - run.flowing.events) / run.cpu_seconds for run in runs)
        yield {
            "name": "frontend.tokens_per_cpu_second",
            "value": round(events_per_second * tokens_per_event),
            "unit": "1/s",
            "streams": case.streams,
            "tokens_per_event": round(tokens_per_event, 3),
            "delay_p99_ms": round((min(run.last.pause_p99 for run in runs) - case.interval) * 1e3, 1),
            "errors": sum(run.last.errors for run in runs),
        }


def requests() -> Iterator[Record]:
    runs = [uvloop.run(_serve(REQUESTS)) for _ in range(RUNS)]
    yield {
        "name": "frontend.request_us",
        "value": round(min(run.all_cpu_seconds for run in runs) / REQUESTS.streams * 1e6),
        "unit": "us",
        "errors": sum(run.last.errors for run in runs),
    }


def client() -> Iterator[Record]:
    runs = [uvloop.run(_read_tokens(CLIENT)) for _ in range(RUNS)]
    yield {
        "name": "frontend.client_tokens_per_cpu_second",
        "value": round(max(run.tokens / run.cpu_seconds for run in runs)),
        "unit": "1/s",
        "rows": CLIENT.streams,
        "tokens_per_event": round(sum(run.tokens for run in runs) / sum(run.deltas for run in runs), 3),
    }


FIGURES: dict[str, Callable[[], Iterator[Record]]] = {
    "frontend.tokens_per_cpu_second": streams,
    "frontend.request_us": requests,
    "frontend.client_tokens_per_cpu_second": client,
}


class Run(NamedTuple):
    """The readers' results of one run, and the API process's CPU time: while all streams flowed, and in total."""

    flowing: Progress
    ending: Progress
    last: Progress
    cpu_seconds: float
    all_cpu_seconds: float


async def _serve(case: Case) -> Run:
    async with core_process(case.streams, case.interval) as core, api_process(core) as api:
        return await _load(case, api)


async def _load(case: Case, api: ApiProcess) -> Run:
    body = {
        "messages": [{"role": "user", "content": "Tell me about the sea, the sky and what is between them."}],
        "max_tokens": case.tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    load = Load(HOST, api.port, case.streams, json.dumps(body).encode(), case.tokens)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    begun = api.cpu_seconds()
    readers = context.Process(target=stream_readers.main, args=(load, theirs))
    readers.start()
    theirs.close()
    reports = [(await asyncio.to_thread(_receive, ours), api.cpu_seconds()) for _ in range(3)]
    readers.join()
    (flowing, first), (ending, second), (last, third) = reports
    return Run(flowing, ending, last, second - first, third - begun)


def _receive(connection: Connection) -> Progress:
    progress = connection.recv()
    assert isinstance(progress, Progress)
    return progress


class ClientRun(NamedTuple):
    """The tokens that an `EngineClient` in this process received, and its CPU time for them."""

    tokens: int
    deltas: int
    cpu_seconds: float


async def _read_tokens(case: Case) -> ClientRun:
    params = SamplingParams(max_tokens=case.tokens, ignore_eos=True)
    async with core_process(case.streams, case.interval) as core:
        engine = await EngineClient.connect(core.bind)
        try:
            count = _Count(case.streams)
            for _ in range(case.streams):
                engine.submit([1, 2, 3], params, _CountingSink(count))
            await count.all_flow
            tokens, deltas, begun = count.tokens, count.deltas, time.process_time()
            await count.first_ended
            return ClientRun(count.tokens - tokens, count.deltas - deltas, time.process_time() - begun)
        finally:
            engine.close()


class _Count:
    def __init__(self, streams: int) -> None:
        loop = asyncio.get_running_loop()
        self.all_flow: asyncio.Future[None] = loop.create_future()
        self.first_ended: asyncio.Future[None] = loop.create_future()
        self.waiting = streams
        self.tokens = 0
        self.deltas = 0


class _CountingSink:
    """A sink that does the least possible with tokens."""

    def __init__(self, count: _Count) -> None:
        self._count = count
        self._begun = False

    def delta(self, index: int, delta: TokenDelta) -> None:
        count = self._count
        count.tokens += len(delta.tokens)
        count.deltas += 1
        if not self._begun:
            self._begun = True
            count.waiting -= 1
            if not count.waiting:
                count.all_flow.set_result(None)
        if delta.finish and not count.first_ended.done():
            count.first_ended.set_result(None)

    def error(self, error: Exception) -> None:
        if not self._count.first_ended.done():  # Closing the client ends the others.
            self._count.first_ended.set_exception(error)
