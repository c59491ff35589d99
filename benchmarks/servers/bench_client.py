"""The client of `pyllm bench serve` beside a reference: a server of scripted delays that records each token's time.

The server has its own process, and both read the machine's clock. The same statistics are made from the client's and
the server's records, so that any difference is due to the client, or to the path between them. Both have real-time
priority if that is allowed: otherwise a busy machine delays a request before the server records it.
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
from pyllm.bench.answer_reading import RequestRecord
from pyllm.bench.endpoint import Endpoint
from pyllm.bench.load_run import LoadResult, Timed, run_load
from pyllm.bench.prompt_sets import PromptSource, warm_up_prompts
from pyllm.bench.request_metrics import Figures, Selection, summarise
from tests.bench.scripted_server import Script, Sent, scripted_server

SELECTION = Selection(percentiles=(99.0,))
FIGURES = [
    f"{statistic}_{metric}_ms"
    for metric, statistic in itertools.product(("ttft", "tpot", "itl", "e2el"), ("mean", "median", "p99"))
]


class Case(NamedTuple):
    """The number of streams at once, and of requests each; the script's delays in seconds."""

    streams: int
    rounds: int
    ttft: float
    itl: float
    tokens: int


CASES = (Case(1, 20, 0.05, 0.01, 50), Case(16, 10, 0.05, 0.01, 50), Case(64, 6, 0.2, 0.03, 50))


def run() -> Iterator[Record]:
    """A record for each figure of each case, with the server's value and the client's difference."""
    for case in CASES:
        with _in_real_time() as allowed:
            seen, sent = _measure(case)
        client, truth = summarise(seen, SELECTION), summarise(_true_result(seen, sent), SELECTION)
        yield from _records(case, client, truth, allowed)


@contextmanager
def _in_real_time() -> Iterator[bool]:
    """Give this process and its children real-time priority; yield whether that was allowed."""
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
    """The client's result, and the server's record, in the order of the prompts."""
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
        with endpoint.client() as client:
            # The first request of a connection waits until the server has accepted it.
            await run_load(client, warm_up, case.streams)
            return await run_load(client, requests, case.streams)

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
    """Run the server's process: send the address, and the record on request."""

    async def serve() -> None:
        async with scripted_server(script) as server:
            pipe.send(server.address)
            await asyncio.to_thread(pipe.recv)
            pipe.send([Sent(sent.prompt, sent.received, {}, sent.tokens) for sent in server.sent])

    asyncio.run(serve())
