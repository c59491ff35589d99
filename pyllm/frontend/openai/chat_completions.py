"""`POST /v1/chat/completions`: renders a conversation with the model's chat template, and answers it."""

from pyllm.frontend.answers.answer import respond
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, post
from pyllm.frontend.openai.chat_conversation import conversation_of
from pyllm.frontend.openai.chat_format import ChatFormat, ParsedChatFormat
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.openai.parameters import (
    constraint_names,
    format_field,
    may_be_prompt_alone,
    num_chat_logprobs,
    output_limit,
    sampling_params,
    scheduling_params,
    wants_continuous_usage,
)
from pyllm.frontend.openai.protocol import (
    ChatCompletion,
    ChatRequest,
)
from pyllm.frontend.openai.request_start import begin_request
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import generate_chat
from pyllm.frontend.text.truncation import truncation_from

_FIELD_NAMES = {"prompt": "messages", "beam_width": "use_beam_search"}


def chat_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        responses={200: ResponseSpec(ChatCompletion), **ERROR_RESPONSES},
    )
    async def create_chat_completion(request: Request, data: JSONBody[ChatRequest]) -> ASGIApp:
        context = await begin_request(state, request, data)
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
        truncation = truncation_from(data.truncate_prompt_tokens, data.truncation_side, limit or 1, state.client.model)
        conversation = conversation_of(data, context.ignore, truncation)
        prepared, generation = await generate_chat(state, context, scheduling, conversation, params)
        counts_of = generation.counts_of if wants_continuous_usage(data) else None
        kind = ChatFormat if prepared.make_parser is None else ParsedChatFormat
        answer_format = kind(state, context, data, prepared, counts_of)
        return respond(generation, answer_format, data.stream is True, context)

    return create_chat_completion
