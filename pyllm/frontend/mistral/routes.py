"""`POST /v1/fim/completions`: fills the gap between two texts, and answers as a chat does."""

from pyllm.frontend.answers.answer import respond
from pyllm.frontend.chat.conversation import Prepared
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, post
from pyllm.frontend.mistral.protocol import FimRequest
from pyllm.frontend.openai.chat_format import ChatFormat
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.openai.parameters import (
    constraint_names,
    format_field,
    may_be_prompt_alone,
    output_limit,
    sampling_params,
    scheduling_params,
)
from pyllm.frontend.openai.protocol import ChatCompletion
from pyllm.frontend.openai.request_start import begin_request
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import generate, resolve_plain
from pyllm.frontend.text.fill_in_the_middle import add_middle_stops, middle_prompt


def fim_route(state: ServerState) -> Route:
    """The route, for one server."""
    tokenizer = state.tokenizer

    @post(
        "/v1/fim/completions",
        summary="Fill in what is between two texts, in Mistral's shape",
        responses={200: ResponseSpec(ChatCompletion), **ERROR_RESPONSES},
    )
    async def create_fim_completion(request: Request, data: JSONBody[FimRequest]) -> ASGIApp:
        context = await begin_request(state, request, data)
        context.name_fields({"beam_width": "use_beam_search"} | constraint_names(format_field(data), has_tools=False))
        limit = output_limit(data.max_tokens, may_be_none=may_be_prompt_alone(data, context))
        params = sampling_params(data, state.sampling, limit)
        scheduling = scheduling_params(data, context, state.client.model)
        prompt = data.prompt
        if data.suffix:
            prompt = middle_prompt(tokenizer, data.prompt, data.suffix)
            add_middle_stops(params, tokenizer)

        async def prepare() -> Prepared:
            await resolve_plain(state, context, params)
            return Prepared(await state.prompts.encode([prompt]), params)

        prepared, generation = await generate(state, context, scheduling, params.n, prepare)
        # Mistral's streams have the usage in their last chunk, and its clients expect a choice in each.
        answer_format = ChatFormat(state, context, data, prepared, generation.counts_of)
        return respond(generation, answer_format, data.stream is True, context)

    return create_fim_completion
