"""A load on an OpenAI-compatible completions endpoint, measured where its tokens arrive.

`python -m benchmarks.load ADDRESS MODEL [--concurrency C] ...` prints one JSON object. While the load runs, what comes
is only noted; it is read afterwards, so that the processors are the server's. Knows no server by name.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools
import msgspec

# Each of these is one token of the embedded model's vocabulary, with a space before it or without.
_VOCABULARY = (
    "air area art back body book case change child city class country course day end eye face fact family father field "
    "food form game group hand head history home hour house idea job kind land law level life light line man market "
    "matter member mind month mother music name night number order paper part people person place plan point power "
    "problem process program question reason research result right room school sense service side state story student "
    "study system table team test time type use value view war water way week woman word work world year"
)
WORDS = _VOCABULARY.split()

LIMIT = 3600.0  # seconds; bounds a server that hangs
MIXED_SEED = 1  # of the requests of mixed lengths, which two programs make for themselves


class Request(NamedTuple):
    """A prompt, and the number of tokens that must come back."""

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
    """Prompts of so many words of prose, each from the beginning of a sentence of `perplexity.txt`."""
    text = (Path(__file__).parent / "perplexity.txt").read_text().split()
    starts = [index + 1 for index, word in enumerate(text[:-words]) if word.endswith(".")]
    chosen = Random(seed).sample(starts, number)
    return [Request(" ".join(text[start : start + words]), output_tokens) for start in chosen]


def mixed_requests(number: int, least: int, most: int, seed: int = 0) -> list[Request]:
    """Prompts and outputs each of `least` to `most` tokens, all lengths being as likely."""
    random = Random(seed)
    lengths = [(random.randint(least, most), random.randint(least, most)) for _ in range(number)]
    return [Request(" ".join(random.choices(WORDS, k=prompt)), output) for prompt, output in lengths]


class Figures(msgspec.Struct, frozen=True):
    """What a load measured. TTFT is from sending a request to its first chunk, ITL the gap between two chunks.

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
        RuntimeError: an answer was an error, broke off, or has not as many tokens as it was to have.
    """
    bodies = [_body(model, request) for request in requests]
    queue = iter(bodies)

    async def send() -> list[_Exchange]:
        return [await _exchange(address, body) for body in queue]

    cpu, begin = time.process_time(), time.perf_counter()
    async with asyncio.timeout(LIMIT):
        exchanges = await asyncio.gather(*(send() for _ in range(concurrency)))
    seconds = time.perf_counter() - begin
    cpu = time.process_time() - cpu
    answers = [_read(exchange) for those in exchanges for exchange in those]
    tokens, wanted = sum(answer.tokens for answer in answers), sum(request.output_tokens for request in requests)
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came from {address}, {wanted} were asked for: see what ended them early")
    ttft = [answer.arrivals[0] - answer.sent for answer in answers]
    gaps = [later - earlier for answer in answers for earlier, later in pairwise(answer.arrivals)]
    return Figures(
        concurrency=concurrency,
        requests=len(requests),
        prompt_tokens=round(statistics.mean(answer.prompt_tokens for answer in answers), 1),
        seconds=round(seconds, 2),
        output_tokens_per_s=round(tokens / seconds, 1),
        requests_per_s=round(len(requests) / seconds, 3),
        ttft_p50_ms=_percentile(ttft, 0.5),
        ttft_p99_ms=_percentile(ttft, 0.99),
        itl_p50_ms=_percentile(gaps, 0.5),
        itl_p99_ms=_percentile(gaps, 0.99),
        e2e_p50_ms=_percentile([answer.ended - answer.sent for answer in answers], 0.5),
        tokens_per_chunk=round(tokens / sum(len(answer.arrivals) for answer in answers), 3),
        client_cores=round(cpu / seconds, 3),
    )


def main() -> None:
    """Put one load on a server that is there already, after a short one to warm it up."""
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
    """A few short requests which share nothing with any other load."""
    return equal_requests(4, 32, 8, seed=-1)


def _body(model: str, request: Request) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def _exchange(address: str, body: bytes) -> "_Exchange":
    host, port = urlsplit(address).hostname, urlsplit(address).port
    assert host is not None, f"{address!r} is not http://HOST:PORT"
    assert port is not None, f"{address!r} is not http://HOST:PORT"
    exchange = _Exchange(
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    await asyncio.get_running_loop().create_connection(lambda: exchange, host, port)
    await exchange.ended
    return exchange


class _Exchange(asyncio.Protocol):
    """One request and what came for it, with the time of each piece. `httptools` calls the methods `on_...`."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._now = self.sent = time.perf_counter()
        self.status = 0
        self.pieces: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.pieces.append((self._now, body))

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._transport.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            came = sum(len(body) for _, body in self.pieces)
            self.ended.set_exception(RuntimeError(f"an answer broke off after {came} bytes ({error}): see the log"))


@dataclass(frozen=True, slots=True)
class _Answer:
    sent: float
    arrivals: list[float]  # of each chunk
    ended: float
    prompt_tokens: int
    tokens: int


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


def _read(exchange: _Exchange) -> _Answer:
    """What the server said, by the times at which it was heard."""
    if exchange.status != 200:
        text = b"".join(body for _, body in exchange.pieces).decode(errors="replace")
        raise RuntimeError(f"the server answered {exchange.status}: {text[:500]}")
    arrivals, usage, last = [], None, None
    decoder = msgspec.json.Decoder(_Event)
    for now, data in _events(exchange.pieces):
        if data == b"[DONE]":
            break
        event = decoder.decode(data)
        usage = event.usage or usage
        # Some servers say in a chunk of its own, without text, that an answer has ended.
        if any(choice.text or choice.finish_reason is None for choice in event.choices):
            arrivals.append(now)
        last = now if event.choices else last
    if usage is None or last is None:
        raise RuntimeError(f"an answer of {len(arrivals)} chunks has no usage: the server must give it")
    arrivals = arrivals or [last]  # An only token without text, as half of a character, is said with the end.
    return _Answer(exchange.sent, arrivals, exchange.pieces[-1][0], usage.prompt_tokens, usage.completion_tokens)


def _events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and the time at which its last byte came."""
    rest = b""
    for now, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line[5:].strip()


def _percentile(seconds: Sequence[float], share: float) -> float:
    """In milliseconds; 0 where there is nothing to rank."""
    ranked = sorted(seconds)
    return round(1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 2) if ranked else 0.0


if __name__ == "__main__":
    main()
