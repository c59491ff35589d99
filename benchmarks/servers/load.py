"""Loads of the benchmarks: their requests, and the figures of `pyllm bench serve` under our names of records.

Knows no server by name.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from pyllm.bench.endpoint import Endpoint
from pyllm.bench.load_run import Timed, run_load
from pyllm.bench.prompt_sets import WORDS, Prompt
from pyllm.bench.request_metrics import Selection, summarise

LIMIT = 3600.0  # seconds of a request; bounds a server that hangs
_SELECTION = Selection(percentiles=(50.0, 99.0))
# Our name of each figure, and that of `pyllm bench serve`.
_FIGURES = {
    "seconds": "duration",
    "output_tokens_per_s": "output_throughput",
    "requests_per_s": "request_throughput",
    "ttft_p50_ms": "p50_ttft_ms",
    "ttft_p99_ms": "p99_ttft_ms",
    "itl_p50_ms": "p50_itl_ms",
    "itl_p99_ms": "p99_itl_ms",
    "e2e_p50_ms": "p50_e2el_ms",
    "client_cores": "client_cores",
}
MIXED_SEED = 1  # of the requests of mixed lengths, which two programs make for themselves


def equal_requests(
    number: int, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0, seed: int = 0
) -> list[Prompt]:
    """Prompts of seeded random words, of which the first `shared_tokens` are the same in all of them."""
    random = Random(seed)
    shared = random.choices(WORDS, k=shared_tokens)
    own = prompt_tokens - shared_tokens
    return [Prompt(" ".join(shared + random.choices(WORDS, k=own)), output_tokens) for _ in range(number)]


def natural_requests(number: int, words: int, output_tokens: int, seed: int = 0) -> list[Prompt]:
    """Prompts of `words` words of prose, each from the beginning of a sentence of `perplexity.txt`."""
    text = (Path(__file__).parents[1] / "perplexity.txt").read_text().split()
    starts = [index + 1 for index, word in enumerate(text[:-words]) if word.endswith(".")]
    chosen = Random(seed).sample(starts, number)
    return [Prompt(" ".join(text[start : start + words]), output_tokens) for start in chosen]


def conversation_requests(number: int, turns: Sequence[int], words: int, output_tokens: int) -> list[Prompt]:
    """Prompts of conversations: for each turn (from 1 on) all conversations, each `words` words longer than before.

    Each has its own part of `perplexity.txt`, which is repeated.
    """
    text = (Path(__file__).parents[1] / "perplexity.txt").read_text().split()
    starts = range(0, len(text), len(text) // number)[:number]
    most, text = words * max(turns), 2 * text
    assert most <= len(text) // 2, f"the text has no {most} words"
    return [Prompt(" ".join(text[start : start + words * turn]), output_tokens) for turn in turns for start in starts]


def mixed_requests(number: int, least: int, most: int, seed: int = 0) -> list[Prompt]:
    """Prompts and outputs each of `least` to `most` tokens, with equally likely lengths."""
    random = Random(seed)
    lengths = [(random.randint(least, most), random.randint(least, most)) for _ in range(number)]
    return [Prompt(" ".join(random.choices(WORDS, k=prompt)), output) for prompt, output in lengths]


async def measure(address: str, model: str, requests: Sequence[Prompt], concurrency: int) -> dict[str, float]:
    """Send all requests in order, `concurrency` at a time, greedy and streaming; `docs/benchmarking.md` has the fields.

    Raises:
        RuntimeError: an answer was an error, broke off, or has a wrong number of tokens.
    """
    endpoint = Endpoint(address, model=model, fields={"temperature": 0, "ignore_eos": True})
    with endpoint.client() as client:
        sent = [Timed(endpoint.request(request)) for request in requests]
        result = await run_load(client, sent, concurrency, seconds_each=LIMIT)
    records = result.records
    for record in records:
        if record.error or not record.has_usage:
            raise RuntimeError(f"{address}: {record.error or 'an answer has no usage: the server must give it'}")
    tokens, wanted = sum(record.output_tokens for record in records), sum(request.output_tokens for request in requests)
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came from {address}, {wanted} were asked for: see what ended them early")
    figures = summarise(result, _SELECTION)
    return {
        "concurrency": concurrency,
        "requests": len(requests),
        "prompt_tokens": round(figures["total_input_tokens"] / len(requests), 1),
        **{name: round(figures[theirs], 3) for name, theirs in _FIGURES.items()},
        "tokens_per_chunk": round(tokens / sum(len(record.arrivals) for record in records), 3),
    }


def warm_up_requests() -> list[Prompt]:
    """A few short requests that share no prefix with any other load."""
    return equal_requests(4, 32, 8, seed=-1)
