"""OpenAI's stream of chunks, for completions and chat. Each chunk is one `data:` line; `[DONE]` is the last."""

from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import UNSET, Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.openai.error_format import error_response
from pyllm.frontend.openai.protocol import ChatChunk, Completion, Usage
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.text.detokenizer import TextDelta

_TEXT = "\0"  # Stands for the text in a chunk that is encoded once.
_DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Chunks(Protocol):
    """One route's chunks. `chunk` has the fields that all share; if its usage is None, the last chunk has the usage.

    With `shows_tokens` a chunk also has the ids of its new tokens.
    """

    @property
    def chunk(self) -> Completion | ChatChunk: ...

    @property
    def shows_tokens(self) -> bool: ...

    def first(self, choice: int) -> Completion | ChatChunk | None:
        """The whole chunk that a choice has before its first text, if any."""

    def piece(self, choice: int, delta: TextDelta) -> Struct:
        """A choice with new text."""

    def last(self, choice: int, delta: TextDelta) -> Struct:
        """A choice with its finish reason, and the text that comes with its end."""

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], usage: Usage) -> Struct:
        """The answer that is not streamed. `prompts` has, for each choice, the log-probabilities of its prompt."""


class ChunkFormat:
    """An `AnswerFormat` of chunks. The JSON around a choice's text is encoded once: a token costs its text only.

    With `counts_of` each chunk has its own choice's usage so far, as in vLLM.
    """

    def __init__(self, chunks: Chunks, counts_of: Callable[[int], TokenCounts] | None = None) -> None:
        self._chunks = chunks
        self._counts_of = counts_of
        self._shows_tokens = chunks.shows_tokens
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._greeted: set[int] = set()

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """The chunks of a choice's new text; empty if there is none to show yet."""
        if delta.finish_reason is not None:
            events = self.chunk(choice, self._chunks.last(choice, delta))
        elif delta.logprobs or (self._shows_tokens and delta.tokens) or (delta.text and self._counts_of is not None):
            events = self.chunk(choice, self._chunks.piece(choice, delta))
        elif delta.text:
            events = self._piece(choice, delta.text)
        else:
            return b""
        if choice in self._greeted:
            return events
        self._greeted.add(choice)
        return self.first(choice) + events

    def first(self, choice: int) -> bytes:
        """The chunk that a choice begins with, if any."""
        first = self._chunks.first(choice)
        if first is None:
            return b""
        if self._counts_of is not None:
            first.usage = Usage.of(self._counts_of(choice)._replace(completion=0))
        return _event(first)

    def chunk(self, choice: int, content: Struct) -> bytes:
        """A chunk of one choice's part."""
        chunk = msgspec.structs.replace(self._chunks.chunk, choices=[content])
        if self._counts_of is not None:
            chunk.usage = Usage.of(self._counts_of(choice))
        return _event(chunk)

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """The JSON before and after a choice's new text; None before its first text."""
        return self._around.get(choice)

    def end(self, counts: TokenCounts, reasoning_tokens: int | None = None) -> bytes:
        """The usage, where the client asked for it, and the end."""
        chunk = self._chunks.chunk
        if chunk.usage is UNSET:
            return _DONE
        return _event(msgspec.structs.replace(chunk, usage=Usage.of(counts, reasoning_tokens))) + _DONE

    def failed(self, failure: Failure) -> bytes:
        """The error, and the end."""
        return _event(error_response(failure)) + _DONE

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Struct:
        """The answer that is not streamed."""
        return self._chunks.whole(choices, prompts, Usage.of(counts))

    def error(self, failure: Failure) -> Struct:
        """The error by itself."""
        return error_response(failure)

    def _piece(self, choice: int, text: str) -> bytes:
        around = self._around.get(choice)
        if around is None:
            example = self.chunk(choice, self._chunks.piece(choice, TextDelta(_TEXT, [])))
            before, _, after = example.rpartition(_encode(_TEXT))
            around = self._around[choice] = before, after
        return around[0] + _encode(text) + around[1]


def _event(body: Struct) -> bytes:
    return b"data: %b\n\n" % _encode(body)
