"""OpenAI's stream of chunks, for completions and chat. Each chunk is one `data:` line; `[DONE]` is the last."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import msgspec
from msgspec import UNSET, Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.openai.error_format import error_response
from pyllm.frontend.openai.parameters import wants_usage
from pyllm.frontend.openai.protocol import ChatChunk, Completion, GenerationRequest, Usage
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.detokenizer import TextDelta

_TEXT = "\0"  # Stands for the text in a chunk that is encoded once.
_DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class ChunkFormat(ABC):
    """An `AnswerFormat` of chunks. The JSON around a choice's text is encoded once: a token costs its text only.

    With `counts_of` each chunk has its own choice's usage so far, as in vLLM.
    """

    _CHUNK: ClassVar[type[Completion | ChatChunk]]
    _ID_PREFIX: ClassVar[str]
    _OBJECT: ClassVar[str]

    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        request: GenerationRequest,
        counts_of: Callable[[int], TokenCounts] | None,
    ) -> None:
        # The fields that all chunks share; if its usage is None, the last chunk has the usage.
        self._chunk = self._CHUNK(
            id=f"{self._ID_PREFIX}-{context.request_id}",
            object=self._OBJECT,
            created=context.created,
            model=context.model_name,
            choices=[],
            usage=None if wants_usage(request) else UNSET,
            system_fingerprint=state.system_fingerprint(context.adapter),
        )
        self._shows_tokens = request.return_token_ids is True
        self._counts_of = counts_of
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._greeted: set[int] = set()

    @abstractmethod
    def _first(self, choice: int) -> Completion | ChatChunk | None:
        """The whole chunk that a choice has before its first text, if any."""

    @abstractmethod
    def _piece(self, choice: int, delta: TextDelta) -> Struct:
        """A choice with new text."""

    @abstractmethod
    def _last(self, choice: int, delta: TextDelta) -> Struct:
        """A choice with its finish reason, and the text that comes with its end."""

    @abstractmethod
    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Struct:
        """The answer that is not streamed. `prompts` has, for each choice, the log-probabilities of its prompt."""

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """The chunks of a choice's new text; empty if there is none to show yet."""
        if delta.finish_reason is not None:
            events = self._event(choice, self._last(choice, delta))
        elif delta.logprobs or (self._shows_tokens and delta.tokens) or (delta.text and self._counts_of is not None):
            events = self._event(choice, self._piece(choice, delta))
        elif delta.text:
            events = self._text_event(choice, delta.text)
        else:
            return b""
        return events if choice in self._greeted else self._greeting(choice) + events

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """The JSON before and after a choice's new text; None before its first text."""
        return self._around.get(choice)

    def end(self, counts: TokenCounts) -> bytes:
        """The usage, where the client asked for it, and the end."""
        if self._chunk.usage is UNSET:
            return _DONE
        return _event(msgspec.structs.replace(self._chunk, usage=self._usage(counts))) + _DONE

    def failed(self, failure: Failure) -> bytes:
        """The error, and the end."""
        return _event(error_response(failure)) + _DONE

    def error(self, failure: Failure) -> Struct:
        """The error by itself."""
        return error_response(failure)

    def _usage(self, counts: TokenCounts) -> Usage:
        return Usage.of(counts)

    def _greeting(self, choice: int) -> bytes:
        """The chunk that a choice begins with, if any."""
        self._greeted.add(choice)
        first = self._first(choice)
        if first is None:
            return b""
        if self._counts_of is not None:
            first.usage = Usage.of(self._counts_of(choice)._replace(completion=0))
        return _event(first)

    def _event(self, choice: int, content: Struct) -> bytes:
        """A chunk of one choice's part."""
        chunk = msgspec.structs.replace(self._chunk, choices=[content])
        if self._counts_of is not None:
            chunk.usage = Usage.of(self._counts_of(choice))
        return _event(chunk)

    def _text_event(self, choice: int, text: str) -> bytes:
        around = self._around.get(choice)
        if around is None:
            example = self._event(choice, self._piece(choice, TextDelta(_TEXT, [])))
            before, _, after = example.rpartition(_encode(_TEXT))
            around = self._around[choice] = before, after
        return around[0] + _encode(text) + around[1]


def _event(body: Struct) -> bytes:
    return b"data: %b\n\n" % _encode(body)
