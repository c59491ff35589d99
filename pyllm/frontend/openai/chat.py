"""`POST /v1/chat/completions`: a conversation in, by the model's chat template; the assistant's words out."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import UNSET

from pyllm.frontend.admission import admit, charge
from pyllm.frontend.answer import respond
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.form import Form
from pyllm.frontend.generation import Generation
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.openai.chat_conversation import conversation_of
from pyllm.frontend.openai.chunks import ChunkForm
from pyllm.frontend.openai.errors import ERROR_RESPONSES
from pyllm.frontend.openai.logprobs import TokenBytes, chat_logprobs, prompt_logprobs, token_names
from pyllm.frontend.openai.parameters import (
    FORCED_FORM,
    form_names,
    num_chat_logprobs,
    sampling_params,
    scheduling_params,
    wants_continuous_usage,
    wants_usage,
)
from pyllm.frontend.openai.parsed_chat import ParsedChatForm
from pyllm.frontend.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    Usage,
)
from pyllm.frontend.request_context import RequestContext, context_of
from pyllm.frontend.server_state import ServerState, check_model
from pyllm.frontend.stream import PushedResponse
from pyllm.frontend.truncation import truncation
from pyllm.frontend.unsupported import refuse_unsupported
from pyllm.sampling_params import SamplingParams

ROLE = "assistant"

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
        context = context_of(request)
        context.name_request(data.request_id)
        context.name_tenant(data.user)
        has_tools = bool(data.tools) and data.structured_outputs is None
        context.field_names = _FIELD_NAMES | form_names("response_format", data.response_format is not None, has_tools)
        check_model(state, data.model)
        refuse_unsupported(data)
        limit = data.max_tokens if data.max_completion_tokens is None else data.max_completion_tokens
        params = sampling_params(data, limit, num_chat_logprobs(data, state.client.model.max_logprobs))
        scheduling = scheduling_params(data, context)
        chunks = ChatChunks(context, state.model_name, data, params, state.tokenizer.token_bytes)
        cut = truncation(data.truncate_prompt_tokens, data.truncation_side, limit or 1, state.client.model)
        conversation = msgspec.structs.replace(conversation_of(data, context.ignore), truncation=cut)
        if conversation.forces_call:
            context.field_names = _FIELD_NAMES | FORCED_FORM
        await admit(state, context, params.n)
        prepared = await state.conversations.prepare(conversation, params, context.ignore)
        await charge(state, context, len(prepared.prompt))
        chunks.prompt = prepared.prompt
        generation = Generation(state, [prepared.prompt], prepared.params, scheduling, context)
        counts_of = generation.counts_of if wants_continuous_usage(data) else None
        form: Form
        if prepared.make_parser is None:
            form = ChunkForm(chunks, counts_of)
        else:
            form = ParsedChatForm(
                chunks,
                prepared.make_parser,
                partial(state.conversations.call_id, context.request_id),
                shows_reasoning=data.include_reasoning is not False,
                counts_reasoning=state.conversations.has_reasoning,
                counts_of=counts_of,
            )
        return respond(generation, form, data.stream is True, context)

    return create_chat_completion


class ChatChunks:
    """Chat completions' JSON. `prompt` must be given before the first text if the answer tells of it."""

    def __init__(
        self, context: RequestContext, model: str, request: ChatRequest, params: SamplingParams, token_bytes: TokenBytes
    ) -> None:
        self.chunk = ChatChunk(
            id=f"chatcmpl-{context.request_id}",
            object="chat.completion.chunk",
            created=context.created,
            model=model,
            choices=[],
            usage=None if wants_usage(request) else UNSET,
        )
        self.prompt: Sequence[int] = []
        self.shows_tokens = request.return_token_ids is True
        self._name = token_names(request.return_tokens_as_token_ids)
        self._num_logprobs = params.logprobs
        self._has_prompt_logprobs = params.prompt_logprobs is not None
        self._token_bytes = token_bytes

    def first(self, choice: int) -> ChatChunk:
        """A chunk with a choice's role."""
        first = msgspec.structs.replace(self.chunk, choices=[ChatChunkChoice(choice, ChatDelta(ROLE, ""))])
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
                AssistantMessage(ROLE, choice.text),
                self._logprobs(choice),
                choice.finish_reason,
                choice.stop_reason,
                choice.tokens if self.shows_tokens else UNSET,
            )
            for index, choice in enumerate(choices)
        ]
        answer = ChatCompletion(chunk.id, "chat.completion", chunk.created, chunk.model, answers, usage)
        if self._has_prompt_logprobs:
            answer.prompt_logprobs = prompt_logprobs(prompts[0])  # The choices have one prompt.
        if self.shows_tokens:
            answer.prompt_token_ids = list(self.prompt)
        return answer

    def _logprobs(self, delta: TextDelta) -> ChatLogprobs | None:
        if self._num_logprobs is None or not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._num_logprobs, self._token_bytes, self._name)
