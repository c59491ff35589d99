"""`/v1/responses`: creates, fetches, cancels and deletes responses, and lists the input of a stored one."""

import asyncio
import threading
from collections.abc import Callable

from pyllm.errors import RequestError
from pyllm.frontend.answers.answer import respond
from pyllm.frontend.chat.conversation import Conversation, Prepared
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.openapi import QUERY
from pyllm.frontend.http.routing import FromPath, JSONBody, Request, Response, ResponseSpec, Route, delete, get, post
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.logprobs import chat_logprobs
from pyllm.frontend.openai.parameters import (
    constraint_names,
    num_top_logprobs,
    output_limit,
    own_constraint,
    sample_params,
    scheduling_params,
    structured_outputs,
)
from pyllm.frontend.openai.request_start import begin_request
from pyllm.frontend.requests.admission_control import admit
from pyllm.frontend.requests.request_context import RequestContext, context_of
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import generate_chat
from pyllm.frontend.responses import protocol
from pyllm.frontend.responses.answer_format import LogprobsOf, ResponsesFormat
from pyllm.frontend.responses.background import BackgroundRun
from pyllm.frontend.responses.item_references import dereferenced
from pyllm.frontend.responses.items import input_items, items_of, messages_of
from pyllm.frontend.responses.page import PAGE_QUERY, page_of
from pyllm.frontend.responses.protocol import (
    DeletedResponse,
    InputTokens,
    Item,
    ItemList,
    ResponseRecord,
    ResponsesRequest,
    ToolParam,
)
from pyllm.frontend.responses.response_store import ResponseStore
from pyllm.frontend.responses.tools import built_in_names, callable_tools, shown_tools, tools_and_choice
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams

_LOGPROBS, _ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_FIELD_NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
}
_LOOKUP_ERRORS = {**LOOKUP_ERROR_RESPONSES, 400: LOOKUP_ERROR_RESPONSES[404]}


def responses_routes(state: ServerState) -> list[Route]:
    """The routes, for one server."""
    model = state.client.model
    store = ResponseStore(state.shared if state.server.max_stored_responses else None)

    @post(
        "/v1/responses",
        summary="Answer an input, and keep the answer for the next one",
        responses={200: ResponseSpec(protocol.Response), **ERROR_RESPONSES},
    )
    async def create_response(request: Request, data: JSONBody[ResponsesRequest]) -> ASGIApp:
        owner = context_of(request).tenant  # Later requests for this response have no body that names a tenant.
        context = await begin_request(state, request, data)
        _check(data, context)
        context.name_fields(_field_names(data))
        stores = await _stores(store, data, context, owner)
        params = _sampling_params(state, data)
        scheduling = scheduling_params(data, context, state.client.model)
        items = await _items(store, data, context, owner)
        tools = callable_tools(data, items, context.ignore)
        conversation = _conversation(data, items, tools)
        prepared, generation = await generate_chat(state, context, scheduling, conversation, params)
        _check_logprobs(prepared, params)
        response = _response(state, data, context, stores, tools)
        response.temperature, response.top_p = params.temperature, params.top_p
        answer_format = ResponsesFormat(
            response,
            None if prepared.make_parser is None else prepared.make_parser(),
            call_name=lambda index: state.chat.tool_call_id(context.request_id, 0, index),
            logprobs=_logprobs(state, params),
            on_end=_putter(store, items, owner) if stores else lambda _: None,
            has_events=data.stream is True,
            block_size=model.block_size if model.enable_prefix_caching else 0,
            encrypts_reasoning=_ENCRYPTED in (data.include or ()),
            built_in_tools=built_in_names(tools),
        )
        if not data.background:
            return respond(generation, answer_format, data.stream is True, context)
        BackgroundRun(generation, answer_format, store, owner).start()
        await store.put(ResponseRecord(response, items), owner)
        return Response(response)

    @get("/v1/responses/{response_id:str}", summary="Fetch a stored response", responses=_LOOKUP_ERRORS)
    async def show_response(request: Request, response_id: FromPath[str]) -> protocol.Response:
        for name in request.query:
            if name not in ("include", "include[]"):
                raise RequestError(f"{name} is not supported; leave it out", name)
        return (await store.get(response_id, context_of(request).tenant)).response

    @delete("/v1/responses/{response_id:str}", summary="Delete a stored response", responses=_LOOKUP_ERRORS)
    async def delete_response(request: Request, response_id: FromPath[str]) -> DeletedResponse:
        await store.delete(response_id, context_of(request).tenant)
        if (run := store.running.get(response_id)) is not None:
            run.abandon()
        return DeletedResponse(response_id)

    @post(
        "/v1/responses/{response_id:str}/cancel",
        summary="End a response that runs in the background",
        responses=_LOOKUP_ERRORS,
    )
    async def cancel_response(request: Request, response_id: FromPath[str]) -> protocol.Response:
        owner = context_of(request).tenant
        record = await store.get(response_id, owner)
        response = record.response
        if not response.background:
            raise RequestError("only a response created with background: true can be cancelled")
        if response.status not in ("queued", "in_progress"):
            return response
        if (run := store.running.get(response_id)) is not None:
            run.cancel()
            await store.put(ResponseRecord(run.response, record.input), owner)
            return run.response
        response.status = "cancelled"  # The process that runs it, if any, looks for this.
        await store.put(record, owner)
        return response

    @get(
        "/v1/responses/{response_id:str}/input_items",
        summary="List what a stored response answers",
        responses=_LOOKUP_ERRORS,
        options={QUERY: PAGE_QUERY},
    )
    async def list_input_items(request: Request, response_id: FromPath[str]) -> ItemList:
        record = await store.get(response_id, context_of(request).tenant)
        return page_of(record.input, request.query)

    return [
        show_response,
        delete_response,
        create_response,
        _count_route(state, store),
        cancel_response,
        list_input_items,
    ]


def _count_route(state: ServerState, store: ResponseStore) -> Route:
    @post(
        "/v1/responses/input_tokens",
        summary="Count the tokens of an input",
        responses={200: ResponseSpec(InputTokens), **ERROR_RESPONSES},
    )
    async def count_input_tokens(request: Request, data: JSONBody[ResponsesRequest]) -> InputTokens:
        owner = context_of(request).tenant
        context = await begin_request(state, request, data)
        context.name_fields(_field_names(data))
        await admit(state, context, num_sequences=0)
        items = await _items(store, data, context, owner)
        conversation = _conversation(data, items, callable_tools(data, items, context.ignore))
        return InputTokens(len(await state.chat.encode(conversation, context.ignore)))

    return count_input_tokens


def _field_names(request: ResponsesRequest) -> dict[str, str]:
    field = None if request.text is None or request.text.format is None else "text.format"
    has_tools = bool(request.tools) and request.structured_outputs is None
    return _FIELD_NAMES | constraint_names(field, has_tools)


def _check(request: ResponsesRequest, context: RequestContext) -> None:
    for what in request.include or ():
        if what not in (_LOGPROBS, _ENCRYPTED):
            context.ignore(f"include.{what}", f"include: {what:.80} is not supported; leave it out")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options requires stream: true", "stream_options")
    if request.background and request.stream:
        raise RequestError("background and stream cannot be combined; fetch the response by its id", "background")


def _putter(store: ResponseStore, items: list[Item], owner: str) -> Callable[[protocol.Response], None]:
    """The function that stores a response with its input, on the thread of the event loop or another one."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()

    def put(ended: protocol.Response) -> None:
        record = ResponseRecord(ended, items)
        if threading.get_ident() == thread:
            store.put_soon(record, owner)
        else:
            loop.call_soon_threadsafe(store.put_soon, record, owner)

    return put


def _check_logprobs(prepared: Prepared, params: SamplingParams) -> None:
    if prepared.make_parser is not None and params.logprobs is not None:
        text = "include: log-probabilities are not available when tool calls or reasoning are parsed from the text"
        raise RequestError(text, "include")


async def _stores(store: ResponseStore, request: ResponsesRequest, context: RequestContext, owner: str) -> bool:
    stores = store.store_or_refuse(request.store, request.background is True)
    if stores and request.request_id is not None:
        await _refuse_taken(store, context, owner)
    return stores


async def _refuse_taken(store: ResponseStore, context: RequestContext, owner: str) -> None:
    """Refuse the caller's own id if it would replace another response; the same response may be resumed."""
    record = await store.find(_response_id(context), owner)
    if record is None:
        return
    position = context.position
    if position is None or position.seed is None or record.response.created_at != context.created:
        text = f"request_id: the stored response {record.response.id!r} exists already; send another id, or none"
        raise RequestError(text, "request_id")


async def _items(store: ResponseStore, request: ResponsesRequest, context: RequestContext, owner: str) -> list[Item]:
    """The whole conversation of the request, its new input included."""
    history = await _history(store, request, owner)
    given = await dereferenced(request.input, history, store, owner)
    return [*history, *input_items(given, context.request_id, context.ignore)]


async def _history(store: ResponseStore, request: ResponsesRequest, owner: str) -> list[Item]:
    """The stored conversation that the request continues."""
    if request.previous_response_id is None:
        return []
    name = "previous_response_id"
    record = await store.get(request.previous_response_id, owner)
    if record.response.status not in ("completed", "incomplete"):
        raise RequestError(f"{name}: the response {record.response.id!r} is {record.response.status}", name)
    return [*record.input, *items_of(record.response.output)]


def _conversation(request: ResponsesRequest, items: list[Item], tools: list[ToolParam]) -> Conversation:
    called, choice = tools_and_choice(request, tools)
    return Conversation(
        messages=messages_of(items, request.instructions),
        tools=called,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
        template_variables=request.chat_template_kwargs or {},
    )


def _sampling_params(state: ServerState, request: ResponsesRequest) -> SamplingParams:
    num_top = num_top_logprobs(request.top_logprobs, state.client.model)
    has_logprobs = _LOGPROBS in (request.include or ())
    if num_top and not has_logprobs:
        raise RequestError('top_logprobs requires include: ["message.output_text.logprobs"]', "top_logprobs")
    num_logprobs = num_top if has_logprobs else None
    limit = output_limit(request.max_output_tokens)
    return sample_params(request, state.sampling, limit, num_logprobs, _constraint(request))


def _constraint(request: ResponsesRequest) -> StructuredOutputsParams | None:
    text_format = None if request.text is None else request.text.format
    if text_format is None:
        return own_constraint(request.structured_outputs)
    return structured_outputs(
        request.structured_outputs, text_format.type or "text", text_format.schema, ("text.format", "schema")
    )


def _logprobs(state: ServerState, params: SamplingParams) -> LogprobsOf | None:
    count = params.logprobs
    if count is None:
        return None
    return lambda logprobs: chat_logprobs(logprobs, count, state.tokenizer.token_bytes).content


def _response_id(context: RequestContext) -> str:
    return f"resp_{context.request_id}"


def _response(
    state: ServerState, request: ResponsesRequest, context: RequestContext, stores: bool, tools: list[ToolParam]
) -> protocol.Response:
    """The response before it has any text."""
    response = protocol.Response(
        id=_response_id(context),
        created_at=context.created,
        model=context.model_name,
        status="in_progress",
        background=request.background is True,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        reasoning=request.reasoning,
        service_tier=request.service_tier,
        store=stores,
        tool_choice=request.tool_choice or "auto",
        tools=shown_tools(tools),
        top_logprobs=request.top_logprobs or 0,
        user=request.user,
    )
    if request.text is not None:
        response.text = request.text
    return response
