"""A load on an OpenAI-compatible completions endpoint, measured where its tokens arrive.

`python -m benchmarks.servers.load ADDRESS MODEL [--concurrency C] ...` prints one JSON object. The client is that of
`pyllm bench serve`. Knows no server by name.
"""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from pyllm.bench.endpoint import Endpoint
from pyllm.bench.load_run import Timed, run_load
from pyllm.bench.prompt_sets import WORDS, Prompt

LIMIT = 3600.0  # seconds of a request; bounds a server that hangs
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
    client = endpoint.client()
    try:
        sent = [Timed(endpoint.request(prompt)) for prompt in prompts]
        result = await run_load(client, sent, concurrency, seconds_each=LIMIT)
    finally:
        client.close()
    records, seconds = result.records, result.seconds
    for record in records:
        if record.error or not record.has_usage:
            raise RuntimeError(f"{address}: {record.error or 'an answer has no usage: the server must give it'}")
    tokens, wanted = sum(record.output_tokens for record in records), sum(request.output_tokens for request in requests)
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came from {address}, {wanted} were asked for: see what ended them early")
    ttft = [record.ttft for record in records]
    gaps = [gap for record in records for gap in record.itl]
    return Figures(
        concurrency=concurrency,
        requests=len(requests),
        prompt_tokens=round(statistics.mean(record.input_tokens for record in records), 1),
        seconds=round(seconds, 2),
        output_tokens_per_s=round(tokens / seconds, 1),
        requests_per_s=round(len(requests) / seconds, 3),
        ttft_p50_ms=_percentile(ttft, 0.5),
        ttft_p99_ms=_percentile(ttft, 0.99),
        itl_p50_ms=_percentile(gaps, 0.5),
        itl_p99_ms=_percentile(gaps, 0.99),
        e2e_p50_ms=_percentile([record.e2el for record in records], 0.5),
        tokens_per_chunk=round(tokens / sum(len(record.arrivals) for record in records), 3),
        client_cores=round(result.client_cores, 3),
    )


def main() -> None:
    """Put one load on a running server, after a short one to warm it up."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("address", help="http://HOST:PORT")
    parser.add_argument("model")
    for name, default in (
        ("concurrency", 8),
        ("requests", 32),
        ("prompt-tokens", 128),
        ("output-tokens", 128),
        ("shared-tokens", 0),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    options = parser.parse_args()
    lengths = options.prompt_tokens, options.output_tokens, options.shared_tokens, options.seed
    requests = equal_requests(options.requests, *lengths)
    asyncio.run(measure(options.address, options.model, warm_up_requests(), 2))
    figures = asyncio.run(measure(options.address, options.model, requests, options.concurrency))
    print(msgspec.json.encode(figures).decode())


def warm_up_requests() -> list[Request]:
    """A few short requests that share no prefix with any other load."""
    return equal_requests(4, 32, 8, seed=-1)


def _percentile(seconds: Sequence[float], share: float) -> float:
    """A percentile in milliseconds; 0 without values."""
    ranked = sorted(seconds)
    return round(1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 2) if ranked else 0.0


if __name__ == "__main__":
    main()
