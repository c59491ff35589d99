"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the same engine."""

import msgspec

from pyllm.errors import RequestError
from pyllm.frontend.answers.answer import respond
from pyllm.frontend.anthropic.answer_format import MessageFormat
from pyllm.frontend.anthropic.chat_conversation import check_thinking, conversation_of, thinking_budget
from pyllm.frontend.anthropic.error_format import ERROR_RESPONSES
from pyllm.frontend.anthropic.protocol import (
    CountTokensRequest,
    Message,
    MessagesRequest,
    MessageUsage,
    Metadata,
    OutputFormat,
    TokenCount,
)
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.failure import UnsupportedThreadError
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, post
from pyllm.frontend.openai.parameters import SAMPLING_FIELDS, constraint_names, given_fields
from pyllm.frontend.requests.admission_control import admit
from pyllm.frontend.requests.request_context import context_of
from pyllm.frontend.requests.scheduling import scheduling_from
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import begin, generate_chat
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams

# This API's names of fields, by their names in the engine and in OpenAI's API.
FIELD_NAMES = {
    "chat_template_kwargs.enable_thinking": "thinking",
    "prompt": "messages",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "tool_choice required": "tool_choice any",
}
_SCHEDULING_FIELDS = ("timeout", "ttft_target", "tpot_target", "cache_salt")


class _ClaudeCodeUser(msgspec.Struct):
    account_uuid: str = ""
    device_id: str = ""


def messages_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/v1/messages",
        summary="Answer a conversation in Anthropic's shape",
        responses={200: ResponseSpec(Message), **ERROR_RESPONSES},
    )
    async def create_message(request: Request, data: JSONBody[MessagesRequest]) -> ASGIApp:
        context = await begin(state, request, data)
        context.name_tenant(_user(data.metadata), "metadata.user_id")
        context.name_session(None if data.metadata is None else data.metadata.user_id)
        field = None if _output_format(data) is None else "output_config.format"
        context.name_fields(FIELD_NAMES | constraint_names(field, bool(data.tools)))
        if data.thread is not None:
            text = "thread is not supported: the server keeps no messages; send the whole conversation without it"
            raise UnsupportedThreadError(text, "thread")
        check_thinking(data.thinking, state.chat, context.ignore)
        scheduling = scheduling_from(context, data.priority, **given_fields(data, _SCHEDULING_FIELDS))
        budget = thinking_budget(data.thinking, state.chat, context.ignore)
        conversation, params = conversation_of(data, context.ignore), _sampling_params(state, data, budget)
        prepared, generation = await generate_chat(state, context, scheduling, conversation, params)
        usage = MessageUsage(len(prepared.prompts[0]), 0)
        message = Message(f"msg_{context.request_id}", context.model_name, [], usage)
        parser = None if prepared.make_parser is None else prepared.make_parser()

        def call_name(index: int) -> str:
            return f"toolu_{state.chat.tool_call_id(context.request_id, 0, index).removeprefix('call_')}"

        return respond(generation, MessageFormat(message, parser, call_name), data.stream is True, context)

    return create_message


def count_tokens_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/v1/messages/count_tokens",
        summary="Count the tokens of a conversation in Anthropic's shape",
        responses={200: ResponseSpec(TokenCount), **ERROR_RESPONSES},
    )
    async def count_message_tokens(request: Request, data: JSONBody[CountTokensRequest]) -> TokenCount:
        context = context_of(request)
        context.name_fields(FIELD_NAMES)
        await state.models.choose(context, data.model)
        await admit(state, context, num_sequences=0)
        conversation = conversation_of(data, context.ignore)
        return TokenCount(len(await state.chat.encode(conversation, context.ignore)))

    return count_message_tokens


def _user(metadata: Metadata | None) -> str | None:
    """The user that a request is made for. Claude Code's id is JSON: its session is not part of the user's name."""
    user = None if metadata is None else metadata.user_id
    try:
        parts = msgspec.json.decode(user or "", type=_ClaudeCodeUser)
    except (msgspec.DecodeError, RecursionError):
        return user
    return parts.account_uuid or parts.device_id or user


def _output_format(request: MessagesRequest) -> OutputFormat | None:
    newer = None if request.output_config is None else request.output_config.format
    if newer is not None and request.output_format is not None and newer != request.output_format:
        raise RequestError("output_config.format and output_format differ; leave output_format out", "output_format")
    return newer or request.output_format


def _sampling_params(state: ServerState, request: MessagesRequest, budget: int | None) -> SamplingParams:
    given = given_fields(request, SAMPLING_FIELDS) | {"thinking_token_budget": budget}
    output_format = _output_format(request)
    return SamplingParams(
        **state.sampling.merged(given, request.max_tokens),
        stop=tuple(request.stop_sequences or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop_str_in_output=request.include_stop_str_in_output is True,
        structured_outputs=None if output_format is None else StructuredOutputsParams(json=output_format.schema),
        extra_args=request.vllm_xargs,
    )
