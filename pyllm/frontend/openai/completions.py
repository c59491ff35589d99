"""`POST /v1/completions`: continues one or many prompts, each a text or token ids."""

from collections.abc import Sequence

from pyllm.client.submission import refuse_prompt
from pyllm.errors import Field, RequestError
from pyllm.frontend.answers.answer import respond
from pyllm.frontend.chat.conversation import Prepared
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, post
from pyllm.frontend.openai.completion_format import CompletionFormat, EchoedPrompt
from pyllm.frontend.openai.error_format import ERROR_RESPONSES
from pyllm.frontend.openai.parameters import (
    constraint_names,
    format_field,
    may_be_prompt_alone,
    output_limit,
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
from pyllm.frontend.openai.request_start import begin_request
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import generate, resolve_plain
from pyllm.frontend.text.fill_in_the_middle import add_middle_stops, middle_prompt
from pyllm.frontend.text.truncation import truncation_from
from pyllm.parameters.sampling_params import MAX_SAMPLES, SamplingParams

DEFAULT_MAX_TOKENS = 16  # OpenAI's, and vLLM's


def completions_route(state: ServerState) -> Route:
    """The route, for one server."""

    @post(
        "/v1/completions",
        summary="Continue a text",
        responses={200: ResponseSpec(Completion), **ERROR_RESPONSES},
    )
    async def create_completion(request: Request, data: JSONBody[CompletionRequest]) -> ASGIApp:
        context = await begin_request(state, request, data)
        names = constraint_names(format_field(data), has_tools=False)
        context.name_fields({"beam_width": "use_beam_search"} | names)
        limit = output_limit(data.max_tokens, may_be_none=data.echo is True or may_be_prompt_alone(data, context))
        params = _sampling_params(state, data, DEFAULT_MAX_TOKENS if data.max_tokens is None else limit)
        scheduling = scheduling_params(data, context, state.client.model)
        truncation = truncation_from(data.truncate_prompt_tokens, data.truncation_side, limit or 1, state.client.model)
        given = split_prompts(data.prompt, "prompt", MAX_PROMPTS)
        if data.suffix:
            given = [_between(state, data, prompt) for prompt in given]
            add_middle_stops(params, state.tokenizer)
        echoed: list[EchoedPrompt] = []

        async def prepare() -> Prepared:
            await resolve_plain(state, context, params)
            too_long = refuse_prompt if truncation is None else None
            whole = await state.prompts.encode(given, data.add_special_tokens is not False, too_long)
            prompts = whole if truncation is None else [truncation.kept(tokens) for tokens in whole]
            if data.echo or data.return_token_ids:
                for text, kept, tokens in zip(given, prompts, whole, strict=True):
                    echoed.append(_echoed(state, text, kept, len(kept) < len(tokens)))
            return Prepared(prompts, params)

        _, generation = await generate(state, context, scheduling, _num_choices(len(given), params), prepare)
        counts_of = generation.counts_of if wants_continuous_usage(data) else None
        answer_format = CompletionFormat(state, context, data, echoed, counts_of)
        return respond(generation, answer_format, data.stream is True, context)

    return create_completion


def _between(state: ServerState, request: CompletionRequest, prompt: str | list[int]) -> str:
    """The prompt for the gap between a text and the suffix."""
    if not isinstance(prompt, str):
        raise RequestError("suffix needs a text as prompt, not token ids", "suffix")
    if request.echo:
        raise RequestError("echo and suffix cannot be combined; leave one of them out", "echo")
    return middle_prompt(state.tokenizer, prompt, request.suffix or "")


def _num_choices(num_prompts: int, params: SamplingParams) -> int:
    """The number of choices of so many prompts.

    Raises:
        RequestError: there are more than one request may have.
    """
    number = num_prompts * params.n
    if number > MAX_SAMPLES:
        raise RequestError(f"{num_prompts} prompts times n = {params.n} is more than {MAX_SAMPLES} choices", "n")
    return number


def _sampling_params(state: ServerState, request: CompletionRequest, limit: int | None) -> SamplingParams:
    if request.echo and request.use_beam_search:
        raise RequestError("echo and use_beam_search cannot be combined; leave one of them out", "echo")
    params = sampling_params(request, state.sampling, limit, request.logprobs)
    if not request.echo or request.logprobs is None:
        return params
    if request.stream:
        raise RequestError("echo with logprobs cannot be streamed; set stream to false", "echo")
    if request.logprob_token_ids and limit == 0:
        text = "logprob_token_ids are of the answer's tokens, and "
        rest = (Field("max_tokens"), " 0 leaves none; leave one of them out")
        raise RequestError((text, *rest), "logprob_token_ids")
    if request.prompt_logprobs not in (None, request.logprobs):
        text = "with echo, prompt_logprobs must equal logprobs or be left out"
        raise RequestError(text, "prompt_logprobs")
    params.prompt_logprobs = request.logprobs
    return params


def _echoed(state: ServerState, given: str | list[int], tokens: Sequence[int], is_truncated: bool) -> EchoedPrompt:
    """A prompt to show: as it was given, or decoded if it was token ids or has been truncated."""
    if is_truncated or not isinstance(given, str):
        given = state.tokenizer.decode(tokens, skip_special_tokens=False)
    return EchoedPrompt(given, tokens, state.tokenizer.token_text(tokens[0]) if tokens else "")
