"""`POST /v1/completions`: text or token ids in, one or many prompts at once; text out."""

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody

from pyllm.errors import RequestError
from pyllm.frontend.admission import admit, charge
from pyllm.frontend.answer import respond
from pyllm.frontend.generation import Generation, num_choices
from pyllm.frontend.openai.chunks import ChunkForm
from pyllm.frontend.openai.completion_chunks import CompletionChunks, EchoedPrompt
from pyllm.frontend.openai.errors import ERROR_RESPONSES
from pyllm.frontend.openai.parameters import (
    form_names,
    sampling_params,
    scheduling_params,
    split_prompts,
    wants_continuous_usage,
)
from pyllm.frontend.openai.protocol import (
    MAX_PROMPTS,
    Completion,
    CompletionRequest,
)
from pyllm.frontend.request_context import context_of
from pyllm.frontend.sampling_texts import resolve_texts_aside
from pyllm.frontend.server_state import ServerState, check_model
from pyllm.frontend.stream import PushedResponse
from pyllm.frontend.submission import refuse_prompt
from pyllm.frontend.truncation import truncation
from pyllm.frontend.unsupported import refuse_unsupported
from pyllm.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 16  # OpenAI's, and vLLM's


def completions_route(state: ServerState) -> HTTPRouteHandler:
    """The route, for one server."""

    @post(
        "/v1/completions",
        status_code=200,
        summary="Continue a text",
        responses={200: ResponseSpec(Completion), **ERROR_RESPONSES},
    )
    async def create_completion(request: Request[Any, Any, Any], data: JSONBody[CompletionRequest]) -> PushedResponse:
        context = context_of(request)
        context.name_request(data.request_id)
        context.name_tenant(data.user)
        has_form = data.response_format is not None
        context.field_names = {"beam_width": "use_beam_search"} | form_names("response_format", has_form, False)
        check_model(state, data.model)
        refuse_unsupported(data)
        params = _sampling_params(data)
        scheduling = scheduling_params(data, context)
        cut = truncation(data.truncate_prompt_tokens, data.truncation_side, data.max_tokens or 1, state.client.model)
        chunks = CompletionChunks(context, state.model_name, data)
        given = split_prompts(data.prompt, "prompt", MAX_PROMPTS)
        await admit(state, context, num_choices(len(given), params))
        params = await resolve_texts_aside(params, state.tokenizer)
        too_long = refuse_prompt if cut is None else None
        whole = await state.prompts.encode(given, data.add_special_tokens is not False, too_long)
        prompts: Sequence[Sequence[int]] = whole if cut is None else [cut.kept(tokens) for tokens in whole]
        await charge(state, context, sum(map(len, prompts)))
        if data.echo or data.return_token_ids:
            chunks.prompts = [
                _echoed(state, text, kept, len(kept) < len(tokens))
                for text, kept, tokens in zip(given, prompts, whole, strict=True)
            ]
        generation = Generation(state, prompts, params, scheduling, context)
        form = ChunkForm(chunks, generation.counts_of if wants_continuous_usage(data) else None)
        return respond(generation, form, data.stream is True, context)

    return create_completion


def _sampling_params(request: CompletionRequest) -> SamplingParams:
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if not request.echo:
        return sampling_params(request, limit, request.logprobs)
    if request.use_beam_search:
        raise RequestError("echo and use_beam_search exclude one another; leave one of them out", "echo")
    # Nothing of the output is shown of a request for no tokens, but one is computed: that is where prompts end.
    params = sampling_params(request, limit or 1, request.logprobs)
    if request.logprobs is None:
        return params
    if request.stream:
        raise RequestError("echo with logprobs is not for streams; set stream to false", "echo")
    if request.prompt_logprobs not in (None, request.logprobs):
        text = "with echo, prompt_logprobs must be as many as logprobs, or left out"
        raise RequestError(text, "prompt_logprobs")
    return msgspec.structs.replace(params, prompt_logprobs=request.logprobs)


def _echoed(state: ServerState, given: str | list[int], tokens: Sequence[int], is_cut: bool) -> EchoedPrompt:
    """A prompt as it was given, unless it was token ids or only a part of it is computed."""
    text = given if isinstance(given, str) and not is_cut else state.tokenizer.decode(tokens, skip_special_tokens=False)
    return EchoedPrompt(text, tokens, state.tokenizer.token_text(tokens[0]) if tokens else "")
