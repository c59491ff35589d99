"""`POST /v1/chat/completions`: a conversation in, by the model's chat template; the assistant's words out."""

import asyncio
import time
import uuid

import msgspec
from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import UNSET

from pyllm.errors import RequestError
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.openai.answer import TEXT, StreamedAnswer, WholeAnswer, encode_json, event, event_around
from pyllm.frontend.openai.errors import ERROR_RESPONSES
from pyllm.frontend.openai.generation import Generation
from pyllm.frontend.openai.models import check_model
from pyllm.frontend.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatRequest,
    Usage,
    refuse_unsupported,
    sampling_params,
    wants_usage,
)
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.stream import PushedResponse
from pyllm.frontend.tokenizer import INLINE_CHARACTERS

ROLE = "assistant"


def chat_route(state: ServerState) -> HTTPRouteHandler:
    """The route, for one server."""

    @post(
        "/v1/chat/completions",
        status_code=200,
        summary="Answer a conversation",
        responses={200: ResponseSpec(ChatCompletion), **ERROR_RESPONSES},
    )
    async def create_chat_completion(data: JSONBody[ChatRequest]) -> PushedResponse:
        check_model(state, data.model)
        refuse_unsupported(data)
        limit = data.max_tokens if data.max_completion_tokens is None else data.max_completion_tokens
        params = sampling_params(data, limit)
        form = ChatFormat(state.model_name, wants_usage(data))
        prompt = await _encode(state, data)
        generation = Generation(state, [prompt], params)
        return PushedResponse(StreamedAnswer(generation, form) if data.stream else WholeAnswer(generation, form))

    return create_chat_completion


async def _encode(state: ServerState, request: ChatRequest) -> list[int]:
    if state.chat_template is None:
        raise RequestError("this model has no chat template; use /v1/completions", "messages")
    if not request.messages:
        raise RequestError("messages is empty; give at least one message", "messages")
    continues = request.continue_final_message is True
    opens = request.add_generation_prompt is not False
    if continues and opens:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude one another; set add_generation_prompt to false",
            "continue_final_message",
        )
    messages = [_plain(message, f"messages[{index}]") for index, message in enumerate(request.messages)]
    if sum(len(message["content"]) for message in messages) < INLINE_CHARACTERS:
        text = state.chat_template.render(messages, opens, continues)
    else:
        text = await asyncio.to_thread(state.chat_template.render, messages, opens, continues)
    return await state.encode(text, request.add_special_tokens is True)


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


class ChatFormat:
    """Chat completions' JSON."""

    def __init__(self, model: str, includes_usage: bool) -> None:
        self._includes_usage = includes_usage
        self._chunk = ChatChunk(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            object="chat.completion.chunk",
            created=int(time.time()),
            model=model,
            choices=[],
            usage=None if includes_usage else UNSET,
        )
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def first(self, choice: int) -> bytes:
        """The chunk with the role."""
        return event(self._with(ChatChunkChoice(choice, ChatDelta(ROLE, ""))))

    def piece(self, choice: int, text: str) -> bytes:
        """A chunk of text."""
        around = self._around.get(choice)
        if around is None:
            body = self._with(ChatChunkChoice(choice, ChatDelta(content=TEXT)))
            around = self._around[choice] = event_around(body)
        return around[0] + encode_json(text) + around[1]

    def last(self, choice: int, delta: TextDelta) -> bytes:
        """The chunk with the finish reason."""
        text = ChatDelta(content=delta.text) if delta.text else ChatDelta()
        return event(self._with(ChatChunkChoice(choice, text, None, delta.finish_reason, delta.stop_reason)))

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices."""
        if not self._includes_usage:
            return b""
        return event(msgspec.structs.replace(self._chunk, usage=usage))

    def whole(self, choices: list[TextDelta], usage: Usage) -> bytes:
        """The answer."""
        chunk = self._chunk
        answers = [
            ChatChoice(index, AssistantMessage(ROLE, choice.text), None, choice.finish_reason, choice.stop_reason)
            for index, choice in enumerate(choices)
        ]
        return encode_json(ChatCompletion(chunk.id, "chat.completion", chunk.created, chunk.model, answers, usage))

    def _with(self, choice: ChatChunkChoice) -> ChatChunk:
        return msgspec.structs.replace(self._chunk, choices=[choice])
