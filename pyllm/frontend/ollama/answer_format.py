"""An answer as JSON: the lines of its stream, of which the last has the figures, and the whole, which has all of it."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.chat.conversation import Prepared, call_arguments
from pyllm.frontend.chat.parsers.parsed_pieces import Content, Piece, Reasoning, ToolArguments, ToolCallBegin
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.ollama.error_format import OllamaError, error_response
from pyllm.frontend.ollama.protocol import (
    AnswerMessage,
    ChatPart,
    GeneratePart,
    OllamaFunction,
    OllamaToolCall,
    Part,
)
from pyllm.frontend.openai.logprobs import chat_logprobs
from pyllm.frontend.requests.generation import Generation, TokenCounts
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.detokenizer import TextDelta

_encode = msgspec.json.Encoder().encode


class NewText(Struct):
    """The new part of an answer: text, reasoning, and calls that are whole."""

    content: str = ""
    thinking: str = ""
    calls: list[OllamaToolCall] = msgspec.field(default_factory=list)

    def add(self, other: "NewText") -> None:
        """Append a later part."""
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls


# Makes a part of a route's answer; `fields` are those of `Part`.
MakePart = Callable[[NewText, dict[str, Any]], Part]


def chat_part(new: NewText, fields: dict[str, Any]) -> Part:
    """A part of a chat's answer."""
    return ChatPart(message=AnswerMessage("assistant", new.content, new.thinking, new.calls), **fields)


def generate_part(new: NewText, fields: dict[str, Any]) -> Part:
    """A part of a completion. There are no tools."""
    return GeneratePart(response=new.content, thinking=new.thinking or UNSET, **fields)


def timestamp(seconds: float) -> str:
    """A time since the epoch as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class OllamaFormat:
    """An `AnswerFormat` of one answer. `name` is the model's as the request has it.

    `load_seconds` is the time that the request waited for its model.
    """

    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        prepared: Prepared,
        generation: Generation,
        make_part: MakePart,
        *,
        name: str,
        load_seconds: float,
    ) -> None:
        self._make_part = make_part
        self._fields = {"model": name, "created_at": timestamp(time.time())}
        self._arrival = context.arrival
        self._load_seconds = load_seconds
        self._generation = generation
        self._num_logprobs = prepared.params.logprobs
        self._token_bytes = state.tokenizer.token_bytes
        self._parser = None if prepared.make_parser is None else prepared.make_parser()
        self._call_id = partial(state.chat.tool_call_id, context.request_id, 0)
        self._call: ToolCallBegin | None = None  # the call that has begun
        self._arguments: list[str] = []
        self._reason = ""
        self._around: tuple[bytes, bytes] | None = None

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """A line for each part of new text. Log-probabilities are those of the raw tokens, and come with the first."""
        del choice
        parts = list(self._parts(delta))
        logprobs = self._logprobs(delta)
        if logprobs is not None and not parts:
            parts.append(NewText())
        lines = []
        for part in parts:
            lines.append(_line(self._make_part(part, self._fields | _given(logprobs=logprobs))))
            logprobs = None
        return b"".join(lines)

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """The JSON around text that is not parsed."""
        del choice
        if self._parser is None and self._around is None:
            before, _, after = _line(self._make_part(NewText("\0"), self._fields)).rpartition(_encode("\0"))
            self._around = before, after
        return self._around

    def end(self, counts: TokenCounts) -> bytes:
        """The line with the figures."""
        return _line(self._make_part(NewText(), self._fields | self._figures(counts)))

    def failed(self, failure: Failure) -> bytes:
        """The error."""
        return _line(error_response(failure))

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Struct:
        """The answer."""
        del prompts
        (delta,) = choices
        whole = NewText()
        for part in self._parts(delta):
            whole.add(part)
        return self._make_part(whole, self._fields | _given(logprobs=self._logprobs(delta)) | self._figures(counts))

    def error(self, failure: Failure) -> OllamaError:
        """The error by itself."""
        return error_response(failure)

    def _parts(self, delta: TextDelta) -> Iterable[NewText]:
        pieces: Iterable[Piece] = [Content(delta.text)] if delta.text else []
        if self._parser is not None:
            pieces = self._parser.feed(delta)
        for piece in pieces:
            if not isinstance(piece, ToolArguments):
                yield from self._close()
            match piece:
                case Content(text):
                    yield NewText(text)
                case Reasoning(text):
                    yield NewText(thinking=text)
                case ToolCallBegin():
                    self._call = piece
                case ToolArguments(_, text):
                    self._arguments.append(text)
        if delta.finish_reason is not None:
            self._reason = delta.finish_reason
            yield from self._close()

    def _close(self) -> Iterable[NewText]:
        """The call that has begun. Arguments that were cut off, and so are no JSON object, are in a field of one."""
        if self._call is None:
            return
        index, arguments = self._call.index, call_arguments("".join(self._arguments))
        yield NewText(calls=[OllamaToolCall(self._call_id(index), OllamaFunction(index, self._call.name, arguments))])
        self._call = None
        self._arguments.clear()

    def _logprobs(self, delta: TextDelta) -> list[Any] | None:
        if self._num_logprobs is None or not delta.logprobs:
            return None
        return list(chat_logprobs(delta.logprobs, self._num_logprobs, self._token_bytes).content)

    def _figures(self, counts: TokenCounts) -> dict[str, Any]:
        to_first, to_last = self._generation.seconds_of(0)
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": nanoseconds(time.monotonic() - self._arrival),
            "load_duration": nanoseconds(self._load_seconds),
            "prompt_eval_count": counts.prompt,
            "prompt_eval_duration": nanoseconds(to_first),
            "eval_count": counts.completion,
            "eval_duration": nanoseconds(to_last),
        }


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama gives it."""
    return round(1e9 * seconds)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _line(part: Struct) -> bytes:
    return _encode(part) + b"\n"
