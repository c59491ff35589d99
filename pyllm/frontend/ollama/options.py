"""The options and the format of a body as the engine's parameters."""

import math
import re
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.ollama.closed_objects import close_objects
from pyllm.frontend.ollama.protocol import OllamaRequest, Options
from pyllm.frontend.openai.parameters import (
    SAMPLING_FIELDS,
    num_top_logprobs,
    output_limit,
    sample_params,
    scheduling_params,
    structured_outputs,
)
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import take_fields
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams

# This API's names of fields, by their names in the engine and in OpenAI's API.
FIELD_NAMES = {
    **{name: f"options.{name}" for name in SAMPLING_FIELDS},
    "stop": "options.stop",
    "chat_template_kwargs.enable_thinking": "think",
    "reasoning_effort": "think",
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|us|\u00b5s|ns|s|$)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "ns": 1e-9}


def read_options(state: ServerState, context: RequestContext, body: OllamaRequest) -> Options:
    """The options of a body, with the values of Ollama's names in the engine's fields.

    Raises:
        RequestError: an option, or a field of the body, is not supported.
    """
    options = body.options or Options()
    take_fields(state, context, options, "options.")
    refuse_unsupported(body)
    tell_kept(context, body.keep_alive)
    context.name_fields(FIELD_NAMES | ({"structured_outputs": "format"} if body.format else {}))
    context.name_request(options.request_id)
    context.name_tenant(options.user)
    context.name_session(options.prompt_cache_key, options.user)
    return options


def sampling_of(state: ServerState, body: OllamaRequest, options: Options) -> SamplingParams:
    """The sampling parameters; what the options leave out is as in the server's defaults.

    Raises:
        RequestError: a value is out of range, or two fields do not go together.
    """
    num_top = num_top_logprobs(body.top_logprobs, state.client.model)
    if num_top and not body.logprobs:
        raise RequestError("top_logprobs requires logprobs: true", "top_logprobs")
    kind, schema = _format(body.format)
    constraint = structured_outputs(options.structured_outputs, kind, schema, ("format", "schema"))
    limit = output_limit(options.max_tokens or None)
    return sample_params(options, state.sampling, limit, num_top if body.logprobs else None, constraint)


def scheduling_of(state: ServerState, context: RequestContext, options: Options) -> SchedulingParams:
    """The scheduling parameters; raises as `sampling_of`."""
    return scheduling_params(options, context, state.client.model)


def keep_seconds(keep_alive: Any) -> float | None:
    """The time for which a model stays loaded after a request: seconds, or a duration of Go's such as 1h30m.

    None where it is not given; infinite where it is negative.

    Raises:
        RequestError: it is no time.
    """
    if keep_alive is None or isinstance(keep_alive, bool):
        return None
    if isinstance(keep_alive, int | float):
        return float(keep_alive) if keep_alive >= 0 else math.inf
    text = keep_alive if isinstance(keep_alive, str) else ""
    parts = _DURATION.findall(text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text.removeprefix("-"):
        raise RequestError(f"keep_alive is {keep_alive!r:.80}: give seconds, or a duration such as 5m", "keep_alive")
    return math.inf if text.startswith("-") else sum(float(number) * _UNITS[unit] for number, unit in parts)


def tell_kept(context: RequestContext, keep_alive: Any) -> None:
    """Note that a `keep_alive` has no effect: it has one in a catalogue."""
    if keep_seconds(keep_alive) is not None and not context.has_catalogue:
        context.fields.ignore_hint("keep_alive", refusable=True)


def _format(given: Any) -> tuple[str, dict[str, Any] | None]:
    """The kind of OpenAI's format that means the same, and its schema."""
    if not given:
        return "text", None
    if given == "json":
        return "json_object", None
    close_objects(given)
    return "json_schema", given
