"""The formats of chats: plain text, or content, reasoning and tool calls that a parser finds in it."""

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import UNSET

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.chat.conversation import Prepared
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
from pyllm.frontend.openai.chunks import ChunkFormat
from pyllm.frontend.openai.logprobs import chat_logprobs, prompt_logprobs, token_names
from pyllm.frontend.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    GenerationRequest,
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
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.detokenizer import TextDelta

_FUNCTION, _CUSTOM = "function", "custom"


class ChatFormat(ChunkFormat):
    """The answer to one request, whose text is shown as it is."""

    _CHUNK, _ID_PREFIX, _OBJECT = ChatChunk, "chatcmpl", "chat.completion.chunk"
    _chunk: ChatChunk

    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        request: GenerationRequest,
        prepared: Prepared,
        counts_of: Callable[[int], TokenCounts] | None,
    ) -> None:
        super().__init__(state, context, request, counts_of)
        params = prepared.params
        self._prompt = prepared.prompts[0]
        self._role = state.server.response_role
        self._name = token_names(request.return_tokens_as_token_ids)
        # A request gets the sampled token beside the tokens that it names.
        self._num_logprobs = len(named) + 1 if (named := params.logprob_token_ids) else params.logprobs
        self._has_prompt_logprobs = params.prompt_logprobs is not None
        self._token_bytes = state.tokenizer.token_bytes

    def _first(self, choice: int) -> ChatChunk:
        """A chunk with a choice's role."""
        first = msgspec.structs.replace(self._chunk, choices=[ChatChunkChoice(choice, ChatDelta(self._role, ""))])
        if self._shows_tokens:
            first.prompt_token_ids = list(self._prompt)
        return first

    def _piece(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with new text."""
        piece = ChatChunkChoice(choice, ChatDelta(content=delta.text), self._logprobs(delta))
        if self._shows_tokens:
            piece.token_ids = delta.tokens
        return piece

    def _last(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with its finish reason."""
        last = self._piece(choice, delta)
        if not delta.text:
            last.delta = ChatDelta()
        last.finish_reason, last.stop_reason = delta.finish_reason, delta.stop_reason
        return last

    def whole(
        self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts
    ) -> ChatCompletion:
        """The answer."""
        chunk = self._chunk
        answers = [
            ChatChoice(
                index,
                AssistantMessage(self._role, choice.text),
                self._logprobs(choice),
                choice.finish_reason,
                choice.stop_reason,
                choice.tokens if self._shows_tokens else None,
            )
            for index, choice in enumerate(choices)
        ]
        answer = ChatCompletion(
            chunk.id,
            "chat.completion",
            chunk.created,
            chunk.model,
            answers,
            self._usage(counts),
            chunk.system_fingerprint,
        )
        if self._has_prompt_logprobs:
            answer.prompt_logprobs = prompt_logprobs(prompts[0])  # The choices have one prompt.
        if self._shows_tokens:
            answer.prompt_token_ids = list(self._prompt)
        return answer

    def _logprobs(self, delta: TextDelta) -> ChatLogprobs | None:
        if self._num_logprobs is None or not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._num_logprobs, self._token_bytes, self._name)


class ParsedChatFormat(ChatFormat):
    """The answer to one request, with a parser for each choice: content, reasoning and tool calls."""

    def __init__(
        self,
        state: ServerState,
        context: RequestContext,
        request: ChatRequest,
        prepared: Prepared,
        counts_of: Callable[[int], TokenCounts] | None,
    ) -> None:
        super().__init__(state, context, request, prepared, counts_of)
        assert prepared.make_parser is not None
        self._make_parser = prepared.make_parser
        self._call_id = partial(state.chat.tool_call_id, context.request_id)
        is_excluded = request.reasoning is not None and request.reasoning.exclude is True
        self._shows_reasoning = request.include_reasoning is not False and not is_excluded
        self._counts_reasoning = state.chat.has_reasoning
        self._parsers: dict[int, SampleParser] = {}
        self._custom_calls: set[tuple[int, int]] = set()  # choices and indices

    def text(self, choice: int, delta: TextDelta) -> bytes:
        """A chunk for each piece. Log-probabilities and ids are those of the raw tokens, and come with the first."""
        events = []
        parser = self._parsers.get(choice)
        if parser is None:
            parser = self._parsers[choice] = self._make_parser()
            events.append(self._greeting(choice))
        parts = [self._delta(choice, piece) for piece in parser.feed(delta) if self._shows(piece)]
        tokens, logprobs = delta.tokens, delta.logprobs
        if not parts and (delta.finish_reason is not None or logprobs or (tokens and self._shows_tokens)):
            parts = [ChatDelta()]
        for number, part in enumerate(parts, 1):
            source = TextDelta("", tokens, logprobs=logprobs)
            tokens, logprobs = [], None
            if number == len(parts) and delta.finish_reason is not None:
                source.finish_reason, source.stop_reason = _finish_reason(delta, parser), delta.stop_reason
                chunk = self._last(choice, source)
            else:
                chunk = self._piece(choice, source)
            chunk.delta = part
            events.append(self._event(choice, chunk))
        return b"".join(events)

    def whole(
        self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], counts: TokenCounts
    ) -> ChatCompletion:
        """The answer that is not streamed: the sum of the same pieces."""
        answer = super().whole(choices, prompts, counts)
        for choice, delta in zip(answer.choices, choices, strict=True):
            parser = self._parsers[choice.index] = self._make_parser()
            choice.message = self._message(choice, folded(parser.feed(delta)))
            choice.finish_reason = _finish_reason(delta, parser)
        answer.usage = self._usage(counts)
        return answer

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

    def _usage(self, counts: TokenCounts) -> Usage:
        if not self._counts_reasoning:
            return Usage.of(counts)
        return Usage.of(counts, sum(parser.num_reasoning_tokens for parser in self._parsers.values()))


def _call(call_id: str, call: ToolCall) -> ChatToolCall:
    if call.custom:
        return ChatToolCall(call_id, _CUSTOM, custom=CustomCall(call.name, call.arguments))
    return ChatToolCall(call_id, _FUNCTION, FunctionCall(call.name, call.arguments))


def _finish_reason(delta: TextDelta, parser: SampleParser) -> str | None:
    return "tool_calls" if delta.finish_reason == "stop" and parser.has_tool_calls else delta.finish_reason
