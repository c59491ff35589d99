"""A message as JSON: the events of its stream, and the whole, which is the sum of the events."""

import copy
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.anthropic.error_format import AnthropicError, error_response
from pyllm.frontend.anthropic.protocol import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Content,
    Event,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    Stop,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ToolUseContent,
)
from pyllm.frontend.chat.conversation import call_arguments
from pyllm.frontend.chat.parsers import parsed_pieces
from pyllm.frontend.chat.parsers.parsed_pieces import Piece
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.text.detokenizer import TextDelta as NewText

_encode = msgspec.json.Encoder().encode

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}

CallName = Callable[[int], str]


class MessageFormat:
    """An `AnswerFormat` of one message. `message` is empty; `call_name` gives each call of a tool its id."""

    def __init__(self, message: Message, parser: SampleParser | None, call_name: CallName) -> None:
        self._message = message
        self._request_id = message.id.removeprefix("msg_")
        self._parser = parser
        self._call_name = call_name
        self._started = False
        self._block: Content | None = None  # the open block, the last of the message
        self._parts: list[str] = []  # its text so far

    def text(self, choice: int, delta: NewText) -> bytes:
        """The events of new text."""
        del choice
        return b"".join(map(_event, self._events(delta)))

    def around(self, choice: int) -> tuple[bytes, bytes] | None:
        """The JSON before and after the text of an open text block; None where the text is parsed."""
        del choice
        return _TEXT_DELTA if self._parser is None and self._block is not None else None

    def end(self, counts: TokenCounts) -> bytes:
        """The usage, the stop reason, and the last event."""
        message = self._message
        assert message.stop_reason is not None
        message.usage = _usage(counts)
        delta = MessageDelta(Stop(message.stop_reason, message.stop_sequence), message.usage)
        return _event(delta) + _event(MessageStop())

    def failed(self, failure: Failure) -> bytes:
        """The error."""
        return b"event: error\ndata: %b\n\n" % _encode(self.error(failure))

    def whole(self, choices: list[NewText], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Struct:
        """The message."""
        del prompts
        self._events(choices[0])
        self._message.usage = _usage(counts)
        return self._message

    def error(self, failure: Failure) -> AnthropicError:
        """The error by itself."""
        return error_response(failure, self._request_id)

    def _events(self, delta: NewText) -> list[Event]:
        events: list[Event] = []
        if not self._started:
            self._started = True
            events += [MessageStart(msgspec.structs.replace(self._message, content=[])), Ping()]
        if self._parser is not None:
            for piece in self._parser.feed(delta):
                self._add(piece, events)
        elif delta.text:
            self._add(parsed_pieces.Content(delta.text), events)
        if delta.finish_reason is not None:
            self._close(events)
            self._stop(delta)
        return events

    def _add(self, piece: Piece, events: list[Event]) -> None:
        match piece:
            case parsed_pieces.Content(text):
                if not isinstance(self._block, TextContent):
                    self._open(TextContent(""), events)
                delta: TextDelta | ThinkingDelta | InputJsonDelta = TextDelta(text)
            case parsed_pieces.Reasoning(text):
                if not isinstance(self._block, ThinkingContent):
                    self._open(ThinkingContent(""), events)
                delta = ThinkingDelta(text)
            case parsed_pieces.ToolCallBegin(index, name):
                self._open(ToolUseContent(self._call_name(index), name, {}), events)
                return
            case parsed_pieces.ToolArguments(_, text):
                delta = InputJsonDelta(text)
        self._parts.append(text)
        events.append(BlockDelta(self._index, delta))

    def _open(self, block: Content, events: list[Event]) -> None:
        self._close(events)
        self._block = block
        self._message.content.append(block)
        events.append(BlockStart(self._index, copy.copy(block)))

    def _close(self, events: list[Event]) -> None:
        if self._block is None:
            return
        text = "".join(self._parts)
        match self._block:
            case TextContent():
                self._block.text = text
            case ThinkingContent():
                self._block.thinking = text
            case ToolUseContent():
                self._block.input = call_arguments(text)
        events.append(BlockStop(self._index))
        self._block = None
        self._parts.clear()

    def _stop(self, delta: NewText) -> None:
        message = self._message
        reason = delta.finish_reason
        assert reason is not None
        message.stop_reason = _STOP_REASONS.get(reason, reason)
        if reason == "stop" and isinstance(delta.stop_reason, str):
            message.stop_reason, message.stop_sequence = "stop_sequence", delta.stop_reason
        elif reason == "stop" and self._parser is not None and self._parser.has_tool_calls:
            message.stop_reason = "tool_use"

    @property
    def _index(self) -> int:
        return len(self._message.content) - 1


def _usage(counts: TokenCounts) -> MessageUsage:
    return MessageUsage(
        counts.prompt - counts.cached,
        counts.completion,
        cache_read_input_tokens=counts.cached,
        finish_reason="deadline" if counts.is_expired else UNSET,
    )


def _event(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.__struct_config__.tag).encode(), _encode(event))


_BEFORE, _, _AFTER = _event(BlockDelta(0, TextDelta("\0"))).rpartition(_encode("\0"))
_TEXT_DELTA = (_BEFORE, _AFTER)  # Text without a parser is all in the first block.
