"""Loads of the benchmarks: their requests, and the figures of `pyllm bench serve` under our names of records.

Knows no server by name.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from pyllm.bench.endpoint import Endpoint
from pyllm.bench.load_run import Timed, run_load
from pyllm.bench.prompt_sets import WORDS, Prompt
from pyllm.bench.request_metrics import Selection, summarise

LIMIT = 3600.0  # seconds of a request; bounds a server that hangs
_SELECTION = Selection(percentiles=(50.0, 99.0))
MIXED_SEED = 1  # of the requests of mixed lengths, which two programs make for themselves


class Request(NamedTuple):
    """A prompt, and the number of tokens of its answer."""

    prompt: str
    output_tokens: int


def equal_requests(
    number: int, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0, seed: int = 0
) -> list[Request]:
    """Prompts of seeded random words, of which the first `shared_tokens` are the same in all of them."""
    random = Random(seed)
    shared = random.choices(WORDS, k=shared_tokens)
    own = prompt_tokens - shared_tokens
    return [Request(" ".join(shared + random.choices(WORDS, k=own)), output_tokens) for _ in range(number)]


def natural_requests(number: int, words: int, output_tokens: int, seed: int = 0) -> list[Request]:
    """Prompts of `words` words of prose, each from the beginning of a sentence of `perplexity.txt`."""
    text = (Path(__file__).parents[1] / "perplexity.txt").read_text().split()
    starts = [index + 1 for index, word in enumerate(text[:-words]) if word.endswith(".")]
    chosen = Random(seed).sample(starts, number)
    return [Request(" ".join(text[start : start + words]), output_tokens) for start in chosen]


def conversation_requests(number: int, turns: Sequence[int], words: int, output_tokens: int) -> list[Request]:
    """Prompts of conversations: for each turn (from 1 on) all conversations, each `words` words longer than before.

    Each has its own part of `perplexity.txt`, which is repeated.
    """
    text = (Path(__file__).parents[1] / "perplexity.txt").read_text().split()
    starts = range(0, len(text), len(text) // number)[:number]
    most, text = words * max(turns), 2 * text
    assert most <= len(text) // 2, f"the text has no {most} words"
    return [Request(" ".join(text[start : start + words * turn]), output_tokens) for turn in turns for start in starts]


def mixed_requests(number: int, least: int, most: int, seed: int = 0) -> list[Request]:
    """Prompts and outputs each of `least` to `most` tokens, with equally likely lengths."""
    random = Random(seed)
    lengths = [(random.randint(least, most), random.randint(least, most)) for _ in range(number)]
    return [Request(" ".join(random.choices(WORDS, k=prompt)), output) for prompt, output in lengths]


class Figures(msgspec.Struct, frozen=True):
    """The figures of a load. TTFT is from sending a request to its first chunk, ITL the gap between two chunks.

    `client_cores` is this process's own CPU time for each second of the load: what the server could not use.
    """

    concurrency: int
    requests: int
    prompt_tokens: float  # a request, as the server counts
    seconds: float
    output_tokens_per_s: float
    requests_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    e2e_p50_ms: float
    tokens_per_chunk: float
    client_cores: float


async def measure(address: str, model: str, requests: Sequence[Request], concurrency: int) -> Figures:
    """Send all requests in order, `concurrency` at a time, greedy and streaming.

    Raises:
        RuntimeError: an answer was an error, broke off, or has a wrong number of tokens.
    """
    endpoint = Endpoint(address, model=model, fields={"temperature": 0, "ignore_eos": True})
    prompts = [Prompt(request.prompt, request.output_tokens) for request in requests]
    with endpoint.client() as client:
        sent = [Timed(endpoint.request(prompt)) for prompt in prompts]
        result = await run_load(client, sent, concurrency, seconds_each=LIMIT)
    records = result.records
    for record in records:
        if record.error or not record.has_usage:
            raise RuntimeError(f"{address}: {record.error or 'an answer has no usage: the server must give it'}")
    tokens, wanted = sum(record.output_tokens for record in records), sum(request.output_tokens for request in requests)
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came from {address}, {wanted} were asked for: see what ended them early")
    figures = summarise(result, _SELECTION)
    return Figures(
        concurrency=concurrency,
        requests=len(requests),
        prompt_tokens=round(figures["total_input_tokens"] / len(requests), 1),
        seconds=round(result.seconds, 2),
        output_tokens_per_s=round(figures["output_throughput"], 1),
        requests_per_s=round(figures["request_throughput"], 3),
        ttft_p50_ms=round(figures["p50_ttft_ms"], 2),
        ttft_p99_ms=round(figures["p99_ttft_ms"], 2),
        itl_p50_ms=round(figures["p50_itl_ms"], 2),
        itl_p99_ms=round(figures["p99_itl_ms"], 2),
        e2e_p50_ms=round(figures["p50_e2el_ms"], 2),
        tokens_per_chunk=round(tokens / sum(len(record.arrivals) for record in records), 3),
        client_cores=round(result.client_cores, 3),
    )


def warm_up_requests() -> list[Request]:
    """A few short requests that share no prefix with any other load."""
    return equal_requests(4, 32, 8, seed=-1)
