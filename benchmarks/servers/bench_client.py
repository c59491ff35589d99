"""The client of `pyllm bench serve` beside the truth: a server of scripted delays that records when it sent each token.

The server has a process of its own, and both read the clock of the machine. The same statistics make figures of what
the client saw and of what the server recorded, so that any difference is the client's, or that of the way between them.
Both have real-time priority where that is allowed: else a busy machine lets a request wait before the server notes it.
"""

import asyncio
import itertools
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
import uvloop

from benchmarks.record import Record
from pyllm.bench import (
    Endpoint,
    Figures,
    LoadResult,
    PromptSource,
    RequestRecord,
    Selection,
    Timed,
    run_load,
    summarise,
    warm_up_prompts,
)
from tests.bench.scripted_server import Script, Sent, scripted_server

SELECTION = Selection(percentiles=(99.0,))
FIGURES = [
    f"{statistic}_{metric}_ms"
    for metric, statistic in itertools.product(("ttft", "tpot", "itl", "e2el"), ("mean", "median", "p99"))
]


class Case(NamedTuple):
    """So many streams at once, with so many requests each; the script's delays in seconds."""

    streams: int
    rounds: int
    ttft: float
    itl: float
    tokens: int


CASES = (Case(1, 20, 0.05, 0.01, 50), Case(16, 10, 0.05, 0.01, 50), Case(64, 6, 0.2, 0.03, 50))


def run() -> Iterator[Record]:
    """For each case a record a figure, with the truth and how far off the client was."""
    for case in CASES:
        with _in_real_time() as allowed:
            seen, sent = _measure(case)
        client, truth = summarise(seen, SELECTION), summarise(_true_result(seen, sent), SELECTION)
        yield from _records(case, client, truth, allowed)


@contextmanager
def _in_real_time() -> Iterator[bool]:
    """Give this process and those that it starts real-time priority; gives whether that was allowed."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, parameters)


def _records(case: Case, client: Figures, truth: Figures, real_time: bool) -> Iterator[Record]:
    for name in FIGURES:
        yield {
            "name": f"bench_client.{name}",
            "value": round(client[name], 3),
            "unit": "ms",
            "truth": round(truth[name], 3),
            "off_percent": round(100 * (client[name] / truth[name] - 1), 2),
            "streams": case.streams,
            "real_time": real_time,
            "errors": int(client["failed"]),
        }
    cpu = client["client_cores"] * client["duration"] / client["total_output_tokens"]
    yield {"name": "bench_client.chunk_us", "value": round(cpu * 1e6, 1), "unit": "us", "streams": case.streams}


def _measure(case: Case) -> tuple[LoadResult, list[Sent]]:
    """What the client saw, and what the server recorded, in the order of the prompts."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(Script(ttft=case.ttft, itl=case.itl), theirs), daemon=True)
    server.start()
    source = PromptSource("random", output_tokens=case.tokens, input_tokens=32)
    prompts = source.prompts(case.streams * case.rounds)
    endpoint = Endpoint(ours.recv(), model="scripted")
    requests = [Timed(endpoint.request(prompt)) for prompt in prompts]
    warm_up = [Timed(endpoint.request(prompt)) for prompt in warm_up_prompts(case.streams)]

    async def load() -> LoadResult:
        client = endpoint.client()
        try:
            # The first request of a connection waits until the server has accepted it.
            await run_load(client, warm_up, case.streams)
            return await run_load(client, requests, case.streams)
        finally:
            client.close()

    seen = uvloop.run(load())
    ours.send("end")
    by_prompt = {sent.prompt: sent for sent in ours.recv()}
    server.join()
    return seen, [by_prompt[prompt.text] for prompt in prompts]


def _true_result(seen: LoadResult, sent: list[Sent]) -> LoadResult:
    records = [
        RequestRecord(index, 0.0, it.received, it.tokens, it.tokens[-1], output_tokens=len(it.tokens))
        for index, it in enumerate(sent)
    ]
    return msgspec.structs.replace(seen, records=records)


def _serve(script: Script, pipe: Connection) -> None:
    """Runs in the server's process: says the address, and the record once it is asked."""

    async def serve() -> None:
        async with scripted_server(script) as server:
            pipe.send(server.address)
            await asyncio.to_thread(pipe.recv)
            pipe.send([Sent(sent.prompt, sent.received, {}, sent.tokens) for sent in server.sent])

    asyncio.run(serve())
