"""`POST /v1/completions`: text or token ids in, one or many prompts at once; text out."""

from typing import Any, cast

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import UNSET

from pyllm.errors import RequestError
from pyllm.frontend.admission import admit, charge
from pyllm.frontend.answer import respond
from pyllm.frontend.detokenizer import TextDelta
from pyllm.frontend.generation import Generation, num_choices
from pyllm.frontend.logprobs import LogprobEntries
from pyllm.frontend.openai.chunks import ChunkForm
from pyllm.frontend.openai.errors import ERROR_RESPONSES
from pyllm.frontend.openai.logprobs import completion_logprobs, prompt_logprobs
from pyllm.frontend.openai.models import check_model
from pyllm.frontend.openai.parameters import (
    refuse_unsupported,
    sampling_params,
    scheduling_params,
    wants_continuous_usage,
    wants_usage,
)
from pyllm.frontend.openai.protocol import (
    MAX_PROMPTS,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    Usage,
)
from pyllm.frontend.request_context import RequestContext, context_of
from pyllm.frontend.sampling_texts import resolve_texts_aside
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.stream import PushedResponse
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
        context.name_tenant(data.user)
        check_model(state, data.model)
        refuse_unsupported(data)
        limit = DEFAULT_MAX_TOKENS if data.max_tokens is None else data.max_tokens
        params = sampling_params(data, limit, data.logprobs)
        scheduling = scheduling_params(data, context)
        chunks = CompletionChunks(context, state.model_name, params, wants_usage(data))
        texts = split_prompts(data.prompt)
        await admit(state, context, num_choices(len(texts), params))
        params = await resolve_texts_aside(params, state.tokenizer)
        prompts = await state.prompts.encode(texts, data.add_special_tokens is not False)
        await charge(state, context, sum(map(len, prompts)))
        generation = Generation(state, prompts, params, scheduling, context)
        form = ChunkForm(chunks, generation.counts_of if wants_continuous_usage(data) else None)
        return respond(generation, form, data.stream is True, context)

    return create_completion


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The single prompts of a request, each a text or token ids.

    Raises:
        RequestError: there is none, there are too many, or tokens and prompts are mixed.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is an empty list; give a text, token ids, or a list of either", "prompt")
    kinds = set(map(type, prompt))  # a look at 100,000 ids that takes 1 ms
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if int in kinds:
        raise RequestError("prompt mixes token ids and prompts; give one list of token ids for each prompt", "prompt")
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt has {len(prompt)} prompts; at most {MAX_PROMPTS} go into one request", "prompt")
    return [item for item in prompt if not isinstance(item, int)]


class CompletionChunks:
    """Completions' JSON."""

    def __init__(self, context: RequestContext, model: str, params: SamplingParams, includes_usage: bool) -> None:
        self.chunk = Completion(
            id=f"cmpl-{context.request_id}",
            object="text_completion",
            created=context.created,
            model=model,
            choices=[],
            usage=None if includes_usage else UNSET,
        )
        self._has_logprobs = params.logprobs is not None
        self._has_prompt_logprobs = params.prompt_logprobs is not None
        self._text_offsets: dict[int, int] = {}  # where the next token's text begins, by choice

    def first(self, choice: int) -> None:
        """Nothing precedes the text."""
        del choice

    def piece(self, choice: int, delta: TextDelta) -> CompletionChoice:
        """A choice with new text."""
        return CompletionChoice(choice, delta.text, self._logprobs(choice, delta))

    def last(self, choice: int, delta: TextDelta) -> CompletionChoice:
        """A choice with its finish reason."""
        logprobs = self._logprobs(choice, delta)
        return CompletionChoice(choice, delta.text, logprobs, delta.finish_reason, delta.stop_reason)

    def whole(self, choices: list[TextDelta], prompts: list[list[LogprobEntries]], usage: Usage) -> Completion:
        """The answer."""
        texts = [self.last(index, choice) for index, choice in enumerate(choices)]
        if self._has_prompt_logprobs:
            for text, of_prompt in zip(texts, prompts, strict=True):
                text.prompt_logprobs = prompt_logprobs(of_prompt)
        return msgspec.structs.replace(self.chunk, choices=texts, usage=usage)

    def _logprobs(self, choice: int, delta: TextDelta) -> CompletionLogprobs | None:
        if not self._has_logprobs or not delta.logprobs:
            return None
        logprobs, end = completion_logprobs(delta.logprobs, self._text_offsets.get(choice, 0))
        self._text_offsets[choice] = end
        return logprobs
