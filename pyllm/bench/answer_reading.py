"""Records of answers of an OpenAI-compatible server: arrival times of chunks, number of tokens, errors.

Reads finished exchanges; does no I/O. Times are seconds of the client's clock.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from pyllm.bench.load_client import Exchange
from pyllm.wire.server_address import error_text

_FIRST_ERROR_STATUS = 400


class RequestRecord(msgspec.Struct, frozen=True):
    """One request as the client saw it. `error` is the reason of a failure, empty for a success.

    `due` is its scheduled time; it was sent later if `max_concurrency` others ran. `arrivals` are the times of the
    chunks with output, `ended` that of the last chunk. Where the server sends no `usage`, each chunk counts as a token.
    """

    prompt: int  # its index among the prompts
    due: float
    sent: float
    arrivals: list[float] = []
    ended: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    has_usage: bool = True
    error: str = ""

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds: from sending the request to its first chunk."""
        return self.arrivals[0] - self.sent

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds: the gaps between chunks, which may hold several tokens each."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @property
    def e2el(self) -> float:
        """End-to-end latency, in seconds: from sending the request to its last chunk."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds; None where there is no second one."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    def is_output(self) -> bool:
        """Whether the delta has a token. One whose text is empty, a part of a character, never comes with a role."""
        has_text = self.content or self.reasoning_content or self.reasoning or self.tool_calls
        return bool(has_text) or self.role is None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def is_output(self) -> bool:
        """Whether the chunk has a token, and does not only mark the begin or end of the answer."""
        if self.delta is None:
            return bool(self.text) or self.finish_reason is None
        if self.finish_reason is not None:
            return bool(self.delta.content or self.delta.reasoning_content or self.delta.reasoning)
        return self.delta.is_output()


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


def read_answer(prompt: int, due: float, exchange: Exchange) -> RequestRecord:
    """The record of one exchange; its `error` is empty for a complete answer."""
    try:
        return _read(prompt, due, exchange)
    except _AnswerError as error:
        return RequestRecord(prompt, due, exchange.sent, error=str(error))


class _AnswerError(Exception):
    """The reason for which an answer counts as failed."""


def _read(prompt: int, due: float, exchange: Exchange) -> RequestRecord:
    if exchange.failure:
        cut = f" after {exchange.num_bytes} bytes" if exchange.pieces else ""
        raise _AnswerError(exchange.failure + cut)
    if exchange.status >= _FIRST_ERROR_STATUS:
        raise _AnswerError(f"HTTP {exchange.status}: {error_text(b''.join(body for _, body in exchange.pieces))}")
    arrivals, usage, last, done, events = [], None, 0.0, False, 0
    for now, data in server_sent_events(exchange.pieces):
        events += 1
        if data == b"[DONE]":
            done = True
            break
        try:
            chunk = _DECODER.decode(data)
        except msgspec.MsgspecError as error:
            raise _AnswerError(f"a chunk is no chunk of a completion: {error}") from error
        if chunk.error is not None:
            raise _AnswerError(f"an error in the stream: {error_text(msgspec.json.encode(chunk.error))}")
        usage = chunk.usage or usage
        if any(choice.is_output() for choice in chunk.choices):
            arrivals.append(now)
        last = now if chunk.choices else last
        done = done or any(choice.finish_reason for choice in chunk.choices)
    if not events:
        raise _AnswerError(f"HTTP {exchange.status} without a stream of events")
    if not done:
        raise _AnswerError(f"the answer broke off after {len(arrivals)} chunks")
    if not last:
        raise _AnswerError("an answer without a token")
    arrivals = arrivals or [last]  # A single token without text arrives in the last chunk.
    counted = usage or _Usage(0, len(arrivals))
    return RequestRecord(
        prompt,
        due,
        exchange.sent,
        arrivals,
        last,
        counted.prompt_tokens,
        counted.completion_tokens or len(arrivals),
        usage is not None,
    )


def server_sent_events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and the time at which its last byte came."""
    rest = b""
    for now, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line[5:].strip()
