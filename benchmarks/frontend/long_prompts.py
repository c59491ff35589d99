"""The delay of other streams by a prompt of 100,000 tokens.

Streams, long prompts, API process and core have a process each. The figure is the longest pause of any stream while a
long prompt is being answered; beside it, the longest in an equal time without one, which the machine causes.
"""

import asyncio
import http.client
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from random import Random
from typing import NamedTuple, cast

import uvloop

from benchmarks.frontend.api_process import HOST, api_process, core_process
from benchmarks.record import Record
from pyllm.bench.prompt_sets import WORDS

CONTEXT = 131_072
PROMPT_TOKENS = 100_000
PROMPTS = 12
STREAMS = 8
INTERVAL = 0.010  # seconds from token to token
KINDS = ("text", "token ids", "conversation", "the same text again")


class Span(NamedTuple):
    """The times of a request and its answer, by the clock that all processes share."""

    begin: float
    end: float


def run() -> Iterator[Record]:
    for kind in KINDS:
        yield uvloop.run(_delays(kind))


async def _delays(kind: str) -> Record:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        async with core_process(STREAMS + 1, INTERVAL, CONTEXT) as core, api_process(core) as api:
            loop = asyncio.get_running_loop()
            readers = [
                (await loop.create_connection(lambda: _Reader(api.port), HOST, api.port))[1] for _ in range(STREAMS)
            ]
            for reader in readers:
                await reader.begun
            spans, quiet = [], []
            for number in range(PROMPTS):
                span = await loop.run_in_executor(process, _ask, api.port, kind, number)
                begin = time.perf_counter()
                await asyncio.sleep(span.end - span.begin)
                spans.append(span)
                quiet.append(Span(begin, time.perf_counter()))
            for reader in readers:
                reader.close()
    delays = [_longest(readers, span) for span in spans]
    return {
        "name": "long_prompt.delay_ms",
        "value": round(statistics.median(delays), 1),
        "unit": "ms",
        "worst": round(max(delays), 1),
        "without": round(statistics.median(_longest(readers, span) for span in quiet), 1),
        "kind": kind,
        "tokens": PROMPT_TOKENS,
        "answer_s": round(statistics.median(span.end - span.begin for span in spans), 3),
    }


def _longest(readers: "list[_Reader]", span: Span) -> float:
    """The longest delay of a token in this span, in milliseconds beyond one interval after the token before."""
    pauses = [
        after - before
        for reader in readers
        for before, after in pairwise(reader.times)
        if after > span.begin and before < span.end
    ]
    return (max(pauses) - INTERVAL) * 1e3


class _Reader(asyncio.Protocol):
    """Records the arrival times of an endless stream's tokens."""

    def __init__(self, port: int) -> None:
        self.times: list[float] = []
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        body = json.dumps(
            {"prompt": "The sea", "max_tokens": CONTEXT - 100, "ignore_eos": True, "stream": True, "seed": 1}
        )
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._request = (head + body).encode()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if b"data: " in data:
            self.times.append(time.perf_counter())
            if not self.begun.done():
                self.begun.set_result(None)

    def close(self) -> None:
        self._transport.abort()


def _ask(port: int, kind: str, number: int) -> Span:
    """Send a long prompt from its own process, and read the answer."""
    words = Random(0 if kind == "the same text again" else number).choices(WORDS, k=PROMPT_TOKENS)
    options = {"max_tokens": 1, "ignore_eos": True}
    if kind == "conversation":
        turns = [" ".join(words[start : start + 500]) for start in range(0, len(words) - 3000, 500)]
        roles = ["user", "assistant"] * len(turns)
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
        path, body = "/v1/chat/completions", json.dumps({"messages": messages, **options})
    elif kind == "token ids":
        ids = [Random(number).randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)]
        path, body = "/v1/completions", json.dumps({"prompt": ids, **options})
    else:
        path, body = "/v1/completions", json.dumps({"prompt": " ".join(words), **options})
    connection = http.client.HTTPConnection(HOST, port)
    begin = time.perf_counter()
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    end = time.perf_counter()
    connection.close()
    assert answer.status == 200, text
    return Span(begin, end)
