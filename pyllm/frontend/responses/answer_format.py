"""A response as JSON: the events of its stream, and the whole, which is the sum of the events."""

import copy
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.chat.parsers import parsed_pieces
from pyllm.frontend.chat.parsers.parsed_pieces import Piece
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.openai.error_format import error_response
from pyllm.frontend.openai.protocol import ChatLogprob
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.responses.encrypted_reasoning import encode_reasoning
from pyllm.frontend.responses.protocol import (
    ApplyPatchCall,
    CustomToolCall,
    FunctionCall,
    IncompleteDetails,
    InputTokensDetails,
    LocalShellCall,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseUsage,
    Status,
)
from pyllm.frontend.responses.tools import built_in_call, fill_call
from pyllm.frontend.text.detokenizer import TextDelta

_encode = msgspec.json.Encoder().encode

CallName = Callable[[int], str]
OnEnd = Callable[[Response], None]
LogprobsOf = Callable[[list[LogprobEntries]], list[ChatLogprob]]


class ResponsesFormat:
    """An `AnswerFormat` of one response, which grows with the text. `on_end` is called with the finished response.

    `logprobs` formats log-probabilities; None leaves them out. `call_name` names calls. Without `has_events` only the
    response is made: its events are empty. With `encrypts_reasoning` its reasoning is also `encrypted_content`. Calls
    of the `built_in_tools` are items of their own types. `block_size` is the prefix cache's, 0 without one.
    """

    def __init__(
        self,
        response: Response,
        parser: SampleParser | None,
        *,
        call_name: CallName,
        logprobs: LogprobsOf | None,
        on_end: OnEnd,
        has_events: bool = True,
        block_size: int,
        encrypts_reasoning: bool = False,
        built_in_tools: frozenset[str] = frozenset(),
    ) -> None:
        self.response = response
        self._suffix = response.id.removeprefix("resp_")
        self._parser = parser
        self._call_name = call_name
        self._logprobs_of = logprobs
        self._on_end = on_end
        self._has_events = has_events
        self._block_size = block_size
        self._encrypts_reasoning = encrypts_reasoning
        self._built_in_tools = built_in_tools
        self._num_events = 0
        self._item: OutputItem | None = None  # the open item, the last of the output
        self._parts: list[str] = []  # its text or arguments so far

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """The events of new text."""
        del choice
        events = [] if self._num_events else [self._lifecycle("created"), self._lifecycle("in_progress")]
        if self._parser is not None:
            for piece in self._parser.feed(delta):
                self._add(piece, events, [])
        elif delta.text or (delta.logprobs and self._logprobs_of is not None):
            self._add(parsed_pieces.Content(delta.text), events, self._logprobs(delta))
        if delta.finish_reason is not None:
            if not self.response.output:
                self._open(self._message(), events)
            self._finish(delta.finish_reason, events)
        return b"".join(events)

    def around(self, choice: int) -> None:
        """None: every event has a number of its own."""
        del choice

    def end(self, counts: TokenCounts) -> bytes:
        """The last event, with all of the response."""
        self._count(counts)
        self._on_end(self.response)
        return self._lifecycle(self.response.status)

    def failed(self, failure: Failure) -> bytes:
        """The last event of a response that failed."""
        events: list[bytes] = []
        self._close("incomplete", events)
        self.response.status = "failed"
        self.response.error = ResponseError(failure.code or "server_error", failure.text)
        self._on_end(self.response)
        return b"".join(events) + self._lifecycle("failed")

    def cancelled(self, counts: TokenCounts) -> None:
        """End a cancelled response with its output so far."""
        self._close("incomplete", [])
        self._count(counts)
        self.response.status = "cancelled"
        self._on_end(self.response)

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Response:
        """The response."""
        del prompts
        self.text(0, choices[0])
        self.end(counts)
        return self.response

    def error(self, failure: Failure) -> Struct:
        """The error by itself: there is no response then."""
        return error_response(failure)

    def _add(self, piece: Piece, events: list[bytes], logprobs: list[ChatLogprob]) -> None:
        item = self._item
        match piece:
            case parsed_pieces.Content(text):
                if not isinstance(item, OutputMessage):
                    item = self._message()
                    self._open(item, events)
                item.content[0].logprobs += logprobs
                events.append(self._of_part("output_text.delta", item, delta=text, logprobs=logprobs))
            case parsed_pieces.Reasoning(text):
                if not isinstance(item, ReasoningItem):
                    item = ReasoningItem(self._name("rs"), "in_progress", [ReasoningText()])
                    self._open(item, events)
                events.append(self._of_part("reasoning_text.delta", item, delta=text))
            case parsed_pieces.ToolCallBegin(index, name) if name in self._built_in_tools:
                self._open(built_in_call(name, self._item_suffix, self._call_name(index)), events)
                return
            case parsed_pieces.ToolCallBegin(index, name, custom):
                kind, prefix = (CustomToolCall, "ctc") if custom else (FunctionCall, "fc")
                self._open(kind(self._name(prefix), "in_progress", self._call_name(index), name), events)
                return
            case parsed_pieces.ToolArguments(_, text):
                if isinstance(item, FunctionCall):
                    events.append(self._of_item("function_call_arguments.delta", item, delta=text))
                elif isinstance(item, CustomToolCall):
                    events.append(self._of_item("custom_tool_call_input.delta", item, delta=text))
        self._parts.append(text)

    def _message(self) -> OutputMessage:
        return OutputMessage(self._name("msg"), "in_progress", [OutputText()])

    def _open(self, item: OutputItem, events: list[bytes]) -> None:
        self._close("completed", events)
        self._item = item
        self.response.output.append(item)
        if not isinstance(item, OutputMessage | ReasoningItem):
            events.append(self._event("output_item.added", output_index=self._index, item=item))
            return
        empty = copy.copy(item)
        empty.content = []
        events.append(self._event("output_item.added", output_index=self._index, item=empty))
        events.append(self._of_part("content_part.added", item, part=item.content[0]))

    def _close(self, status: Status, events: list[bytes]) -> None:
        item, text = self._item, "".join(self._parts)
        self._parts.clear()
        self._item = None
        if item is None:
            return
        match item:
            case OutputMessage():
                part = item.content[0]
                part.text = text
                events.append(self._of_part("output_text.done", item, text=text, logprobs=part.logprobs))
                events.append(self._of_part("content_part.done", item, part=part))
            case ReasoningItem():
                item.content[0].text = text
                if self._encrypts_reasoning:
                    item.encrypted_content = encode_reasoning(text)
                events.append(self._of_part("reasoning_text.done", item, text=text))
                events.append(self._of_part("content_part.done", item, part=item.content[0]))
            case FunctionCall():
                item.arguments = text
                events.append(self._of_item("function_call_arguments.done", item, name=item.name, arguments=text))
            case CustomToolCall():
                item.input = text
                events.append(self._of_item("custom_tool_call_input.done", item, input=text))
            case LocalShellCall() | ApplyPatchCall():
                fill_call(item, text)
        item.status = status
        events.append(self._event("output_item.done", output_index=self._index, item=item))

    def _finish(self, reason: str, events: list[bytes]) -> None:
        response = self.response
        if reason == "stop":
            self._close("completed", events)
            response.status = "completed"
        else:
            self._close("incomplete", events)
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails("max_output_tokens" if reason == "length" else reason)

    def _count(self, counts: TokenCounts) -> None:
        self.response.usage = ResponseUsage(
            counts.prompt,
            InputTokensDetails(counts.cached, max(0, self._num_cacheable(counts.prompt) - counts.cached)),
            counts.completion,
            OutputTokensDetails(0 if self._parser is None else self._parser.num_reasoning_tokens),
            counts.prompt + counts.completion,
            "deadline" if counts.is_expired else UNSET,
        )
        self.response.completed_at = int(time.time())

    def _num_cacheable(self, num_prompt_tokens: int) -> int:
        """Tokens of the prompt in full blocks, which the prefix cache keeps."""
        return num_prompt_tokens - num_prompt_tokens % self._block_size if self._block_size else 0

    def _logprobs(self, delta: TextDelta) -> list[ChatLogprob]:
        return [] if self._logprobs_of is None or not delta.logprobs else self._logprobs_of(delta.logprobs)

    def _name(self, prefix: str) -> str:
        return f"{prefix}_{self._item_suffix}"

    @property
    def _item_suffix(self) -> str:
        """The suffix of the next item's id."""
        return f"{self._suffix}_{len(self.response.output)}"

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    def _lifecycle(self, kind: str) -> bytes:
        return self._event(kind, response=self.response)

    def _of_item(self, kind: str, item: OutputItem, **fields: Any) -> bytes:
        return self._event(kind, item_id=item.id, output_index=self._index, **fields)

    def _of_part(self, kind: str, item: OutputItem, **fields: Any) -> bytes:
        return self._of_item(kind, item, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        if not self._has_events:
            return b""
        event = {"type": f"response.{kind}", "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return b"event: response.%b\ndata: %b\n\n" % (kind.encode(), _encode(event))
