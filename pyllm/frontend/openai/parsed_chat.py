"""Chat answers that need a parser: content, reasoning and tool calls. One parser makes chunks and whole answers."""

from collections.abc import Callable
from typing import Protocol

from msgspec import UNSET, Struct

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.chat.parsers.parsed_pieces import (
    Content,
    ParsedText,
    Piece,
    Reasoning,
    ToolArguments,
    ToolCall,
    ToolCallBegin,
    folded,
)
from pyllm.frontend.chat.parsers.sample_parser import SampleParser
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.openai.chunks import ChunkFormat
from pyllm.frontend.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    Usage,
)
from pyllm.frontend.openai.tool_protocol import (
    ChatToolCall,
    ChatToolCallDelta,
    CustomCall,
    CustomCallDelta,
    FunctionCall,
    FunctionCallDelta,
)
from pyllm.frontend.requests.generation import TokenCounts
from pyllm.frontend.text.detokenizer import TextDelta

_FUNCTION, _CUSTOM = "function", "custom"


class RawChat(Protocol):
    """Chunks and answers of raw text, as `ChatChunks` makes them; the parser's pieces then replace the text."""

    @property
    def chunk(self) -> ChatChunk: ...

    @property
    def shows_tokens(self) -> bool: ...

    def first(self, choice: int) -> ChatChunk:
        """A chunk with a choice's role."""

    def piece(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with new text."""

    def last(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with its finish reason."""

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], usage: Usage) -> ChatCompletion:
        """The answer."""


class ParsedChatFormat:
    """An `AnswerFormat` of a raw chat, with a parser for each choice. `call_id` names a call by its choice and index.

    Without `shows_reasoning` reasoning is left out. With `counts_reasoning` the usage has its number of tokens.
    `counts_of` is that of `ChunkFormat`.
    """

    def __init__(
        self,
        raw: RawChat,
        make_parser: Callable[[], SampleParser],
        call_id: Callable[[int, int], str],
        *,
        shows_reasoning: bool,
        counts_reasoning: bool,
        counts_of: Callable[[int], TokenCounts] | None = None,
    ) -> None:
        self._raw = raw
        self._answer_format = ChunkFormat(raw, counts_of)
        self._make_parser = make_parser
        self._call_id = call_id
        self._shows_reasoning = shows_reasoning
        self._counts_reasoning = counts_reasoning
        self._parsers: dict[int, SampleParser] = {}
        self._custom_calls: set[tuple[int, int]] = set()  # choices and indices

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """A chunk for each piece. Log-probabilities and ids are those of the raw tokens, and come with the first."""
        events = []
        parser = self._parsers.get(choice)
        if parser is None:
            parser = self._parsers[choice] = self._make_parser()
            events.append(self._answer_format.first(choice))
        parts = [self._delta(choice, piece) for piece in parser.feed(delta) if self._shows(piece)]
        tokens, logprobs = delta.tokens, delta.logprobs
        if not parts and (delta.finish_reason is not None or logprobs or (tokens and self._raw.shows_tokens)):
            parts = [ChatDelta()]
        for number, part in enumerate(parts, 1):
            source = TextDelta("", tokens, logprobs=logprobs)
            tokens, logprobs = [], None
            if number == len(parts) and delta.finish_reason is not None:
                source.finish_reason, source.stop_reason = _finish_reason(delta, parser), delta.stop_reason
                chunk = self._raw.last(choice, source)
            else:
                chunk = self._raw.piece(choice, source)
            chunk.delta = part
            events.append(self._answer_format.chunk(choice, chunk))
        return b"".join(events)

    def around(self, choice: int) -> None:
        """None: all text is parsed before it goes out."""
        del choice

    def end(self, counts: TokenCounts) -> bytes:
        """The usage, where the client asked for it, and the end."""
        return self._answer_format.end(counts, self._num_reasoning_tokens())

    def failed(self, failure: Failure) -> bytes:
        """The error, and the end."""
        return self._answer_format.failed(failure)

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts) -> Struct:
        """The answer that is not streamed: the sum of the same pieces."""
        answer = self._raw.whole(choices, prompts, Usage.of(counts))
        for choice, delta in zip(answer.choices, choices, strict=True):
            parser = self._parsers[choice.index] = self._make_parser()
            choice.message = self._message(choice, folded(parser.feed(delta)))
            choice.finish_reason = _finish_reason(delta, parser)
        answer.usage = Usage.of(counts, self._num_reasoning_tokens())
        return answer

    def error(self, failure: Failure) -> Struct:
        """The error by itself."""
        return self._answer_format.error(failure)

    def _shows(self, piece: Piece) -> bool:
        return self._shows_reasoning or not isinstance(piece, Reasoning)

    def _delta(self, choice: int, piece: Piece) -> ChatDelta:
        match piece:
            case Content(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                return ChatDelta(reasoning=text)
            case ToolCallBegin(index, name, custom):
                call = ChatToolCallDelta(index, id=self._call_id(choice, index))
                if custom:
                    self._custom_calls.add((choice, index))
                    call.type, call.custom = _CUSTOM, CustomCallDelta("", name)
                else:
                    call.type, call.function = _FUNCTION, FunctionCallDelta("", name)
                return ChatDelta(tool_calls=[call])
            case ToolArguments(index, text):
                call = ChatToolCallDelta(index)
                if (choice, index) in self._custom_calls:
                    call.custom = CustomCallDelta(text)
                else:
                    call.function = FunctionCallDelta(text)
                return ChatDelta(tool_calls=[call])

    def _message(self, choice: ChatChoice, parsed: ParsedText) -> AssistantMessage:
        calls = [_call(self._call_id(choice.index, index), call) for index, call in enumerate(parsed.tool_calls)]
        has_others = bool(calls or parsed.reasoning)
        return AssistantMessage(
            choice.message.role,
            None if has_others and not parsed.content else parsed.content,
            reasoning=parsed.reasoning if parsed.reasoning and self._shows_reasoning else None,
            tool_calls=calls or UNSET,
        )

    def _num_reasoning_tokens(self) -> int | None:
        if not self._counts_reasoning:
            return None
        return sum(parser.num_reasoning_tokens for parser in self._parsers.values())


def _call(call_id: str, call: ToolCall) -> ChatToolCall:
    if call.custom:
        return ChatToolCall(call_id, _CUSTOM, custom=CustomCall(call.name, call.arguments))
    return ChatToolCall(call_id, _FUNCTION, FunctionCall(call.name, call.arguments))


def _finish_reason(delta: TextDelta, parser: SampleParser) -> str | None:
    return "tool_calls" if delta.finish_reason == "stop" and parser.has_tool_calls else delta.finish_reason
