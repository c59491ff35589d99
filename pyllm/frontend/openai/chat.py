"""`POST /v1/chat/completions`: a conversation in, by the model's chat template; the assistant's words out."""

import time
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import UNSET

from pyllm.errors import RequestError
from pyllm.frontend.answer import respond
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.generation import Generation
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.openai.chunks import ChunkForm
from pyllm.frontend.openai.errors import ERROR_RESPONSES
from pyllm.frontend.openai.logprobs import TokenBytes, chat_logprobs, prompt_logprobs
from pyllm.frontend.openai.models import check_model
from pyllm.frontend.openai.parameters import (
    num_chat_logprobs,
    refuse_unsupported,
    sampling_params,
    scheduling_params,
    wants_usage,
)
from pyllm.frontend.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    Usage,
)
from pyllm.frontend.request_context import RequestContext, context_of
from pyllm.frontend.sampling_texts import resolve_texts_aside
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.stream import PushedResponse
from pyllm.sampling_params import SamplingParams

ROLE = "assistant"


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
        check_model(state, data.model)
        refuse_unsupported(data)
        limit = data.max_tokens if data.max_completion_tokens is None else data.max_completion_tokens
        params = sampling_params(data, limit, num_chat_logprobs(data, state.client.model.max_logprobs))
        scheduling = scheduling_params(data, context)
        chunks = ChatChunks(context, state.model_name, params, wants_usage(data), state.tokenizer.token_bytes)
        params = await resolve_texts_aside(params, state.tokenizer)
        prompt = await encode_conversation(state, data)
        return respond(Generation(state, [prompt], params, scheduling), ChunkForm(chunks), data.stream is True)

    return create_chat_completion


async def encode_conversation(state: ServerState, request: ChatRequest, refuse_long: bool = True) -> list[int]:
    """The token ids of a request's conversation; raises as `PromptEncoder.encode_chat` does."""
    continues = request.continue_final_message is True
    opens = request.add_generation_prompt is not False
    if continues and opens:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude one another; set add_generation_prompt to false",
            "continue_final_message",
        )
    messages = [_plain(message, f"messages[{index}]") for index, message in enumerate(request.messages)]
    adds = request.add_special_tokens is True
    return await state.prompts.encode_chat(messages, opens, continues, adds, refuse_long=refuse_long)


def _plain(message: ChatMessage, where: str) -> dict[str, str]:
    """A message as templates know it, with the text of its parts, one a line."""
    refuse_unsupported(message, f"{where}.")
    content = message.content or ""
    if not isinstance(content, str):
        for index, part in enumerate(content):
            if part.type != "text" or part.text is None:
                field = f"{where}.content[{index}]"
                raise RequestError(f"{field}: a part of type {part.type!r} is not supported; send text", field)
        content = "\n".join(part.text or "" for part in content)
    plain = {"role": message.role, "content": content}
    return plain if message.name is None else {**plain, "name": message.name}


class ChatChunks:
    """Chat completions' JSON."""

    def __init__(
        self, context: RequestContext, model: str, params: SamplingParams, includes_usage: bool, token_bytes: TokenBytes
    ) -> None:
        self.chunk = ChatChunk(
            id=f"chatcmpl-{context.request_id}",
            object="chat.completion.chunk",
            created=int(time.time()),
            model=model,
            choices=[],
            usage=None if includes_usage else UNSET,
        )
        self.shows_tokens = False
        self._num_logprobs = params.logprobs
        self._has_prompt_logprobs = params.prompt_logprobs is not None
        self._token_bytes = token_bytes

    def first(self, choice: int) -> ChatChunkChoice:
        """A choice with its role."""
        return ChatChunkChoice(choice, ChatDelta(ROLE, ""))

    def piece(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with new text."""
        return ChatChunkChoice(choice, ChatDelta(content=delta.text), self._logprobs(delta))

    def last(self, choice: int, delta: TextDelta) -> ChatChunkChoice:
        """A choice with its finish reason."""
        text = ChatDelta(content=delta.text) if delta.text else ChatDelta()
        return ChatChunkChoice(choice, text, self._logprobs(delta), delta.finish_reason, delta.stop_reason)

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
            )
            for index, choice in enumerate(choices)
        ]
        answer = ChatCompletion(chunk.id, "chat.completion", chunk.created, chunk.model, answers, usage)
        if self._has_prompt_logprobs:
            answer.prompt_logprobs = prompt_logprobs(prompts[0])  # The choices have one prompt.
        return answer

    def _logprobs(self, delta: TextDelta) -> ChatLogprobs | None:
        if self._num_logprobs is None or not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._num_logprobs, self._token_bytes)
