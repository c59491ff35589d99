"""`POST /v1/completions`: text or token ids in, one or many prompts at once; text out."""

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
    MAX_PROMPTS,
    Completion,
    CompletionChoice,
    CompletionRequest,
    Usage,
    refuse_unsupported,
    sampling_params,
    wants_usage,
)
from pyllm.frontend.server_state import ServerState
from pyllm.frontend.stream import PushedResponse

DEFAULT_MAX_TOKENS = 16  # OpenAI's, and vLLM's


def completions_route(state: ServerState) -> HTTPRouteHandler:
    """The route, for one server."""

    @post(
        "/v1/completions",
        status_code=200,
        summary="Continue a text",
        responses={200: ResponseSpec(Completion), **ERROR_RESPONSES},
    )
    async def create_completion(data: JSONBody[CompletionRequest]) -> PushedResponse:
        check_model(state, data.model)
        refuse_unsupported(data)
        params = sampling_params(data, DEFAULT_MAX_TOKENS if data.max_tokens is None else data.max_tokens)
        form = CompletionFormat(state.model_name, wants_usage(data))
        prompts = await _encode(state, split_prompts(data.prompt), data.add_special_tokens is not False)
        generation = Generation(state, prompts, params)
        return PushedResponse(StreamedAnswer(generation, form) if data.stream else WholeAnswer(generation, form))

    return create_completion


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The single prompts of a request, each a text or token ids.

    Raises:
        RequestError: there is none, there are too many, or tokens and prompts are mixed.
    """
    if isinstance(prompt, str):
        return [prompt]
    numbers = [item for item in prompt if isinstance(item, int)]
    if not prompt:
        raise RequestError("prompt is an empty list; give a text, token ids, or a list of either", "prompt")
    if len(numbers) == len(prompt):
        return [numbers]
    if numbers:
        raise RequestError("prompt mixes token ids and prompts; give one list of token ids for each prompt", "prompt")
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt has {len(prompt)} prompts; at most {MAX_PROMPTS} go into one request", "prompt")
    return [item for item in prompt if not isinstance(item, int)]


async def _encode(state: ServerState, prompts: list[str | list[int]], add_special_tokens: bool) -> list[list[int]]:
    async def encode(prompt: str | list[int]) -> list[int]:
        return await state.encode(prompt, add_special_tokens) if isinstance(prompt, str) else prompt

    return await asyncio.gather(*map(encode, prompts))


class CompletionFormat:
    """Completions' JSON."""

    def __init__(self, model: str, includes_usage: bool) -> None:
        self._includes_usage = includes_usage
        self._chunk = Completion(
            id=f"cmpl-{uuid.uuid4().hex}",
            object="text_completion",
            created=int(time.time()),
            model=model,
            choices=[],
            usage=None if includes_usage else UNSET,
        )
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def first(self, choice: int) -> bytes:
        """Nothing precedes the text."""
        del choice
        return b""

    def piece(self, choice: int, text: str) -> bytes:
        """A chunk of text."""
        around = self._around.get(choice)
        if around is None:
            around = self._around[choice] = event_around(self._with(CompletionChoice(choice, TEXT)))
        return around[0] + encode_json(text) + around[1]

    def last(self, choice: int, delta: TextDelta) -> bytes:
        """The chunk with the finish reason."""
        return event(self._with(_choice(choice, delta)))

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices."""
        if not self._includes_usage:
            return b""
        return event(msgspec.structs.replace(self._chunk, usage=usage))

    def whole(self, choices: list[TextDelta], usage: Usage) -> bytes:
        """The answer."""
        texts = [_choice(index, choice) for index, choice in enumerate(choices)]
        return encode_json(msgspec.structs.replace(self._chunk, choices=texts, usage=usage))

    def _with(self, choice: CompletionChoice) -> Completion:
        return msgspec.structs.replace(self._chunk, choices=[choice])


def _choice(index: int, delta: TextDelta) -> CompletionChoice:
    return CompletionChoice(index, delta.text, None, delta.finish_reason, delta.stop_reason)
