"""`POST /v1/chat/completions`: renders a conversation with the model's chat template, and answers it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import UNSET

from pyllm.client.logprobs import LogprobEntries
from pyllm.frontend.answers.answer import respond
from pyllm.frontend.answers.answer_format import AnswerFormat
from pyllm.frontend.http.pushed_response import PushedResponse
from pyllm.frontend.openai.chat_conversation import conversation_of
from pyllm.frontend.openai.chunks import ChunkFormat
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.openai.logprobs import chat_logprobs, prompt_logprobs, token_names
from pyllm.frontend.openai.parameters import (
    constraint_names,
    format_field,
    may_be_prompt_alone,
    num_chat_logprobs,
    output_limit,
    sampling_params,
    scheduling_params,
    wants_continuous_usage,
    wants_usage,
    with_defaults,
)
from pyllm.frontend.openai.parsed_chat import ParsedChatFormat
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
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import begin, generate_chat
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.truncation import truncation_from
from pyllm.parameters.sampling_params import SamplingParams

_FIELD_NAMES = {"prompt": "messages", "beam_width": "use_beam_search"}


def chat_route(state: ServerState) -> HTTPRouteHandler:
    """The route, for one server."""

    @post(
        "/v1/chat/completions",
        status_code=200,
        summary="Answer a conversation",
        responses={200: ResponseSpec(ChatCompletion), **ERROR_RESPONSES},
    )
    async def create_chat_completion(request: Request[Any, Any, Any], data: JSONBody[ChatRequest]) -> PushedResponse:
        context = begin(state, request, data)
        data = with_defaults(data, state.server)
        context.name_tenant(data.user)
        context.name_session(data.prompt_cache_key, data.user)
        has_tools = bool(data.tools) and data.structured_outputs is None
        names = constraint_names(format_field(data), has_tools)
        if data.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        context.name_fields(_FIELD_NAMES | names)
        max_tokens = data.max_tokens if data.max_completion_tokens is None else data.max_completion_tokens
        limit = output_limit(max_tokens, may_be_none=may_be_prompt_alone(data, context))
        num_logprobs = num_chat_logprobs(data, state.client.model)
        params = sampling_params(data, state.sampling, limit, num_logprobs)
        scheduling = scheduling_params(data, context, state.client.model)
        chunks = ChatChunks(state, context, data, params)
        truncation = truncation_from(data.truncate_prompt_tokens, data.truncation_side, limit or 1, state.client.model)
        conversation = msgspec.structs.replace(conversation_of(data, context.ignore), truncation=truncation)
        prepared, generation = await generate_chat(state, context, scheduling, conversation, params)
        chunks.prompt = prepared.prompts[0]
        counts_of = generation.counts_of if wants_continuous_usage(data) else None
        answer_format: AnswerFormat
        if prepared.make_parser is None:
            answer_format = ChunkFormat(chunks, counts_of)
        else:
            answer_format = ParsedChatFormat(
                chunks,
                prepared.make_parser,
                partial(state.chat.tool_call_id, context.request_id),
                shows_reasoning=_shows_reasoning(data),
                counts_reasoning=state.chat.has_reasoning,
                counts_of=counts_of,
            )
        return respond(generation, answer_format, data.stream is True, context)

    return create_chat_completion


def _shows_reasoning(request: ChatRequest) -> bool:
    is_excluded = request.reasoning is not None and request.reasoning.exclude is True
    return request.include_reasoning is not False and not is_excluded


class ChatChunks:
    """Chat completions' JSON. `prompt` must be given before the first text if the answer has its tokens."""

    def __init__(
        self, state: ServerState, context: RequestContext, request: GenerationRequest, params: SamplingParams
    ) -> None:
        self.chunk = ChatChunk(
            id=f"chatcmpl-{context.request_id}",
            object="chat.completion.chunk",
            created=context.created,
            model=state.model_name,
            choices=[],
            usage=None if wants_usage(request) else UNSET,
            system_fingerprint=state.system_fingerprint,
        )
        self.prompt: Sequence[int] = []
        self.shows_tokens = request.return_token_ids is True
        self.role = state.server.response_role
        self._name = token_names(request.return_tokens_as_token_ids)
        # A request gets the sampled token beside the tokens that it names.
        self._num_logprobs = len(named) + 1 if (named := params.logprob_token_ids) else params.logprobs
        self._has_prompt_logprobs = params.prompt_logprobs is not None
        self._token_bytes = state.tokenizer.token_bytes

    def first(self, choice: int) -> ChatChunk:
        """A chunk with a choice's role."""
        first = msgspec.structs.replace(self.chunk, choices=[ChatChunkChoice(choice, ChatDelta(self.role, ""))])
        if self.shows_tokens:
            first.prompt_token_ids = list(self.prompt)
        return first

    def piece(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with new text."""
        piece = ChatChunkChoice(choice, ChatDelta(content=delta.text), self._logprobs(delta))
        if self.shows_tokens:
            piece.token_ids = delta.tokens
        return piece

    def last(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with its finish reason."""
        last = self.piece(choice, delta)
        if not delta.text:
            last.delta = ChatDelta()
        last.finish_reason, last.stop_reason = delta.finish_reason, delta.stop_reason
        return last

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], usage: Usage) -> ChatCompletion:
        """The answer."""
        chunk = self.chunk
        answers = [
            ChatChoice(
                index,
                AssistantMessage(self.role, choice.text),
                self._logprobs(choice),
                choice.finish_reason,
                choice.stop_reason,
                choice.tokens if self.shows_tokens else None,
            )
            for index, choice in enumerate(choices)
        ]
        answer = ChatCompletion(
            chunk.id, "chat.completion", chunk.created, chunk.model, answers, usage, chunk.system_fingerprint
        )
        if self._has_prompt_logprobs:
            answer.prompt_logprobs = prompt_logprobs(prompts[0])  # The choices have one prompt.
        if self.shows_tokens:
            answer.prompt_token_ids = list(self.prompt)
        return answer

    def _logprobs(self, delta: TextDelta) -> ChatLogprobs | None:
        if self._num_logprobs is None or not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._num_logprobs, self._token_bytes, self._name)
