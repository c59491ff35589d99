"""The path of every generation to the engine: begin, admit, prepare, charge, generate. Knows no API's fields.

A route decodes its body before this path, and answers in its own format after it (`frontend/answers/answer.py`).
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, cast

from msgspec import Struct

from pyllm.frontend.chat.conversation import Conversation, Prepared
from pyllm.frontend.http.peer_fields import use_bias_by_id, use_own_names
from pyllm.frontend.http.routing import Request
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.requests.admission_control import admit, charge
from pyllm.frontend.requests.generation import Generation
from pyllm.frontend.requests.request_context import RequestContext, context_of
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.text.sampling_texts import resolve_texts_aside
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams


class GenerationBody(Protocol):
    """The fields that the bodies of all generation routes share."""

    model: str | None
    request_id: str | None


async def begin(state: ServerState, request: Request, body: GenerationBody) -> RequestContext:
    """The context of a request, with the id that its body names. Values of peers' field names move to our fields.

    Biases become those of tokens.

    Raises:
        RequestError: the id is unusable, or the server does not have the model or does not support a field.
    """
    context = context_of(request)
    await state.models.choose(context, body.model)
    take_fields(state, context, cast("Struct", body))  # As every body is.
    context.name_request(body.request_id)
    return context


def take_fields(state: ServerState, context: RequestContext, fields: Struct, where: str = "") -> None:
    """Move values of peers' field names to our fields, and turn biases into those of tokens.

    `where` is the path of the fields within the body, such as `options.`.

    Raises:
        RequestError: the server does not support a field.
    """
    names = use_own_names(fields, state.sampling.repetition_penalty)
    context.name_fields({own: f"{where}{theirs}" for own, theirs in names.items()})
    use_bias_by_id(fields, partial(state.tokenizer.encode_batch, add_special_tokens=False))
    refuse_unsupported(fields, where)


async def generate(
    state: ServerState,
    context: RequestContext,
    scheduling: SchedulingParams,
    num_choices: int,
    prepare: Callable[[], Awaitable[Prepared]],
) -> tuple[Prepared, Generation]:
    """The generation, which `respond` starts. The slow `prepare` runs once the request is admitted.

    Raises:
        PyllmError: the request is not admitted, or `prepare` refuses it.
    """
    await admit(state, context, num_choices)
    prepared = await prepare()
    context.adjusted = prepared.adjusted
    await charge(state, context, sum(map(len, prepared.prompts)))
    generation = Generation(state, prepared.prompts, prepared.params, scheduling, context)
    context.max_tokens = generation.reduced_limit
    return prepared, generation


async def resolve_plain(state: ServerState, context: RequestContext, params: SamplingParams) -> None:
    """Turn the texts of parameters outside of conversations into tokens; raises as `resolve_texts` does."""
    state.chat.markers.resolve_plain(params)
    await resolve_texts_aside(params, state.tokenizer, context.ignore)


async def generate_chat(
    state: ServerState,
    context: RequestContext,
    scheduling: SchedulingParams,
    conversation: Conversation,
    params: SamplingParams,
) -> tuple[Prepared, Generation]:
    """The generation of a conversation's next message; raises as `generate` does."""
    if conversation.forces_call:  # It takes precedence over any other constraint.
        context.name_fields({"structured_outputs": "tools"})
    prepare = partial(state.chat.prepare, conversation, params, context.ignore)
    return await generate(state, context, scheduling, params.n, prepare)
