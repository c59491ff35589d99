"""`POST /api/chat` and `/api/generate`: Ollama's API over the same engine, streamed as lines unless asked otherwise."""

import time

from pyllm.checkpoint.hub import Hub
from pyllm.errors import RequestError
from pyllm.frontend.answers.answer import respond_in_lines
from pyllm.frontend.chat.conversation import Prepared
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.routing import JSONBody, Request, Response, ResponseSpec, Route, post
from pyllm.frontend.ollama.answer_format import (
    MakePart,
    NewText,
    OllamaFormat,
    chat_part,
    generate_part,
    timestamp,
)
from pyllm.frontend.ollama.chat_conversation import conversation_of, conversation_of_prompt
from pyllm.frontend.ollama.embedding_routes import embed_route, embeddings_route
from pyllm.frontend.ollama.error_format import ERROR_RESPONSES
from pyllm.frontend.ollama.model_names import choose_model
from pyllm.frontend.ollama.model_routes import model_routes
from pyllm.frontend.ollama.options import keep_seconds, read_options, sampling_of, scheduling_of
from pyllm.frontend.ollama.protocol import (
    ChatPart,
    GeneratePart,
    GenerateRequest,
    OllamaChatRequest,
    OllamaRequest,
    Part,
)
from pyllm.frontend.ollama.store_routes import store_routes
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import generate, generate_chat, resolve_plain
from pyllm.frontend.text.fill_in_the_middle import add_middle_stops, middle_prompt


def ollama_routes(state: ServerState) -> list[Route]:
    """All routes of this API, for one server."""
    return [
        _chat_route(state),
        _generate_route(state),
        embed_route(state),
        embeddings_route(state),
        *model_routes(state),
        *store_routes(
            state.keys,
            state.models.names.__contains__,
            lambda: state.checkpoint.files,
            Hub(cache_dir=state.download_dir or None),
        ),
    ]


def _chat_route(state: ServerState) -> Route:
    @post(
        "/api/chat",
        summary="Answer a conversation in Ollama's shape",
        responses={200: ResponseSpec(ChatPart), **ERROR_RESPONSES},
    )
    async def create_ollama_chat(request: Request, data: JSONBody[OllamaChatRequest]) -> ASGIApp | Response[Part]:
        context = context_of(request)
        load_seconds = await choose_model(state, context, data.model)
        options = read_options(state, context, data)
        context.name_fields({"prompt": "messages"})
        if not data.messages:
            return _loaded(data, chat_part)
        params, scheduling = sampling_of(state, data, options), scheduling_of(state, context, options)
        conversation = conversation_of(data, context.ignore)
        prepared, generation = await generate_chat(state, context, scheduling, conversation, params)
        answer_format = OllamaFormat(
            state, context, prepared, generation, chat_part, name=data.model, load_seconds=load_seconds
        )
        return respond_in_lines(generation, answer_format, data.stream is not False)

    return create_ollama_chat


def _generate_route(state: ServerState) -> Route:
    @post(
        "/api/generate",
        summary="Answer a prompt in Ollama's shape",
        responses={200: ResponseSpec(GeneratePart), **ERROR_RESPONSES},
    )
    async def create_ollama_completion(request: Request, data: JSONBody[GenerateRequest]) -> ASGIApp | Response[Part]:
        context = context_of(request)
        load_seconds = await choose_model(state, context, data.model)
        options = read_options(state, context, data)
        if not data.prompt and not data.suffix:
            return _loaded(data, generate_part)
        params, scheduling = sampling_of(state, data, options), scheduling_of(state, context, options)
        text = _plain_prompt(state, data)
        if text is None:
            conversation = conversation_of_prompt(data, context.ignore)
            prepared, generation = await generate_chat(state, context, scheduling, conversation, params)
        else:
            if data.suffix:
                add_middle_stops(params, state.tokenizer)

            async def prepare() -> Prepared:
                await resolve_plain(state, context, params)
                return Prepared(await state.prompts.encode([text]), params)

            prepared, generation = await generate(state, context, scheduling, params.n, prepare)
        answer_format = OllamaFormat(
            state, context, prepared, generation, generate_part, name=data.model, load_seconds=load_seconds
        )
        return respond_in_lines(generation, answer_format, data.stream is not False)

    return create_ollama_completion


def _plain_prompt(state: ServerState, request: GenerateRequest) -> str | None:
    """The text to continue; None where the prompt is a message for the chat template.

    Raises:
        RequestError: there is no place for the system prompt, or the model cannot fill in the middle.
    """
    prompt = request.prompt or ""
    if not request.raw and not request.suffix and state.chat_template is not None:
        return None
    if request.system:
        reason = "raw mode has none" if request.raw else "a text is continued here, without a chat template"
        raise RequestError(f"system is a part of the chat template, and {reason}; leave it out", "system")
    return middle_prompt(state.tokenizer, prompt, request.suffix) if request.suffix else prompt


def empty_answer(name: str, reason: str, make_part: MakePart) -> Response[Part]:
    """The answer to a request that only loads the model `name`, or unloads it."""
    fields = {"model": name, "created_at": timestamp(time.time()), "done": True, "done_reason": reason}
    return Response(make_part(NewText(), fields))


def _loaded(request: OllamaRequest, make_part: MakePart) -> Response[Part]:
    return empty_answer(request.model, "unload" if keep_seconds(request.keep_alive) == 0 else "load", make_part)
