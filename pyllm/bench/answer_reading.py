"""Records of answers of an OpenAI-compatible server: arrival times of chunks, number of tokens, errors.

Reads finished exchanges; does no I/O. Times are seconds of the client's clock.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from pyllm.bench.load_client import Exchange
from pyllm.errors import PyllmError
from pyllm.wire.server_address import error_text
from pyllm.wire.server_client import Choice, Usage, decode_chunk

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


def read_answer(prompt: int, due: float, exchange: Exchange) -> RequestRecord:
    """The record of one exchange; its `error` is empty for a complete answer."""
    try:
        arrivals, ended, usage = _read(exchange)
    except PyllmError as error:
        return RequestRecord(prompt, due, exchange.sent, error=str(error))
    counted = usage or Usage()
    num_tokens = counted.completion_tokens or len(arrivals)
    has_usage = usage is not None
    return RequestRecord(
        prompt, due, exchange.sent, arrivals, ended, counted.prompt_tokens, num_tokens, has_usage=has_usage
    )


def server_sent_events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and the time at which its last byte came."""
    rest = b""
    for now, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line[5:].strip()


def _read(exchange: Exchange) -> tuple[list[float], float, Usage | None]:
    """The times of chunks with output, that of the last chunk, and the usage.

    Raises:
        PyllmError: the answer counts as failed, for this reason.
    """
    if exchange.failure:
        raise PyllmError(exchange.failure + (f" after {exchange.num_bytes} bytes" if exchange.pieces else ""))
    if exchange.status >= _FIRST_ERROR_STATUS:
        raise PyllmError(f"HTTP {exchange.status}: {error_text(exchange.body)}")
    arrivals, usage, last, done, has_events = list[float](), None, 0.0, False, False
    for now, data in server_sent_events(exchange.pieces):
        has_events = True
        if data == b"[DONE]":
            done = True
            break
        try:
            chunk = decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PyllmError(f"a chunk is no chunk of a completion: {error}") from error
        if chunk.error is not None:
            raise PyllmError(f"an error in the stream: {error_text(msgspec.json.encode(chunk.error))}")
        usage = chunk.usage or usage
        choices = chunk.choices or ()
        if any(map(_has_token, choices)):
            arrivals.append(now)
        last = now if choices else last
        done = done or any(choice.finish_reason for choice in choices)
    if not has_events:
        raise PyllmError(f"HTTP {exchange.status} without a stream of events")
    if not done:
        raise PyllmError(f"the answer broke off after {len(arrivals)} chunks")
    if not last:
        raise PyllmError("an answer without a token")
    return arrivals or [last], last, usage  # A single token without text arrives in the last chunk.


def _has_token(choice: Choice) -> bool:
    """Whether the chunk has a token, and does not only mark the begin or end of the answer.

    One whose text is empty, a part of a character, never comes with a role.
    """
    delta = choice.delta
    if delta is None:
        return bool(choice.text) or choice.finish_reason is None
    if delta.content or delta.reasoning_content or delta.reasoning:
        return True
    return choice.finish_reason is None and (bool(delta.tool_calls) or delta.role is None)
