"""Turns the fields of a body into the engine's parameters. Knows no route and no response."""

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.client.submission import num_logprobs
from pyllm.errors import RequestError
from pyllm.frontend.http.unsupported import refuse_unsupported
from pyllm.frontend.openai.common_fields import EngineRequest, SampledRequest, StructuredOutputs
from pyllm.frontend.openai.protocol import ChatRequest, GenerationRequest
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.scheduling import scheduling_from
from pyllm.kv_transfer.stores.store import Retention
from pyllm.parameters.arguments import check
from pyllm.parameters.sampling_params import AT_LEAST_ONE_OR_ALL, SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from pyllm.wire.messages import ModelInfo

# Fields of requests that are parameters by the same name; `_ends` reads some of them, and a constraint has several.
SAMPLING_FIELDS = tuple(
    name
    for name in EngineRequest.__struct_fields__
    if name in SampledRequest.__annotations__ | EngineRequest.__annotations__
    and name in SamplingParams.__struct_fields__
    and name not in ("stop", "stop_token_ids", "include_stop_str_in_output", "structured_outputs")
)
# Older versions of OpenAI's package spell it in-memory.
_OPENAI_RETENTIONS: dict[str, Retention] = {"in_memory": "none", "in-memory": "none", "24h": "long"}


def given_fields(request: msgspec.Struct, names: Iterable[str]) -> dict[str, Any]:
    """The fields of `names` that a request has, with their values."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def split_prompts(given: str | list[str | int | list[int]], name: str, most: int) -> list[str | list[int]]:
    """The single prompts of a request, each a text or token ids; `name` is the field that has them.

    Raises:
        RequestError: there is none, there are more than `most`, or tokens and prompts are mixed.
    """
    if isinstance(given, str):
        return [given]
    if not given:
        raise RequestError(f"{name} is an empty list; give a text, token ids, or a list of either", name)
    kinds = set(map(type, given))  # a look at 100,000 ids that takes 1 ms
    if kinds == {int}:
        return [cast("list[int]", given)]
    if int in kinds:
        raise RequestError(f"{name} mixes token ids and {name}s; give one list of token ids for each {name}", name)
    if len(given) > most:
        raise RequestError(f"{name} has {len(given)} {name}s; one request may have at most {most}", name)
    return [item for item in given if not isinstance(item, int)]


def constraint_names(field: str | None, has_tools: bool) -> dict[str, str]:
    """The caller's name of `structured_outputs`: the field of their format if they ask for one, or `tools`."""
    return {"structured_outputs": field} if field else {"structured_outputs": "tools"} if has_tools else {}


def format_field(request: GenerationRequest) -> str | None:
    """The field in which a request asks for a format, `structured_outputs` aside."""
    return "response_format" if request.response_format is not None else "format" if request.format else None


def output_limit(max_tokens: int | None, *, may_be_none: bool = False) -> int | None:
    """The most tokens that an answer may have; None for -1, which is llama.cpp's and LM Studio's word for no limit.

    Raises:
        RequestError: it is below -1, or 0 without `may_be_none`.
    """
    if max_tokens in (None, -1):
        return None
    check("max_tokens", max_tokens, max_tokens >= 1 - may_be_none, AT_LEAST_ONE_OR_ALL)
    return max_tokens


def may_be_prompt_alone(request: GenerationRequest, context: RequestContext) -> bool:
    """Whether a request may ask for no tokens: to score a prompt, or, with llama.cpp's `n_predict`, to cache it."""
    return request.prompt_logprobs is not None or context.field_names.get("max_tokens") == "n_predict"


def wants_usage(request: GenerationRequest) -> bool:
    """Whether the stream is to end with a chunk of the usage."""
    return request.stream_options is not None and request.stream_options.include_usage is True


def wants_continuous_usage(request: GenerationRequest) -> bool:
    """Whether each chunk of the stream is to have the usage so far."""
    return request.stream_options is not None and request.stream_options.continuous_usage_stats is True


def sampling_params(
    request: GenerationRequest, defaults: SamplingDefaults, max_tokens: int | None, logprobs: int | None = None
) -> SamplingParams:
    """A request's sampling parameters, checked; fields that it leaves out are as in `defaults`, or else neutral.

    Raises:
        RequestError: a value is out of range, or two fields do not go together.
    """
    whole = {"prompt_logprobs": request.prompt_logprobs is not None, "use_beam_search": request.use_beam_search}
    for name, is_wanted in whole.items():
        if request.stream and is_wanted:
            raise RequestError(f"{name} cannot be streamed; set stream to false", name)
    if request.use_beam_search and request.seed not in (None, -1):
        raise RequestError("seed has no effect on a beam search, which is not random; leave it out", "seed")
    if request.use_beam_search:  # It uses the model's own probabilities.
        defaults = SamplingDefaults(max_tokens=defaults.max_tokens)
    if request.logprob_token_ids and logprobs is None:
        raise RequestError("logprob_token_ids requires logprobs", "logprob_token_ids")
    names = ("n", "prompt_logprobs", "length_penalty", "logprob_token_ids")
    return SamplingParams(
        **defaults.merged(given_fields(request, SAMPLING_FIELDS), max_tokens),
        **given_fields(request, names),
        **_ends(request),
        logprobs=None if request.logprob_token_ids else logprobs,
        structured_outputs=_constraint(request),
        extra_args=request.vllm_xargs,
        beam_width=request.n or 1 if request.use_beam_search else 0,
    )


def sample_params(
    request: EngineRequest,
    defaults: SamplingDefaults,
    max_tokens: int | None,
    logprobs: int | None,
    constraint: StructuredOutputsParams | None,
) -> SamplingParams:
    """The sampling parameters of a route whose answer is one sample; raises as `sampling_params` does."""
    return SamplingParams(
        **defaults.merged(given_fields(request, SAMPLING_FIELDS), max_tokens),
        **_ends(request),
        logprobs=logprobs,
        structured_outputs=constraint,
        extra_args=request.vllm_xargs,
    )


def structured_outputs(
    own: StructuredOutputs | None, kind: str, schema: dict[str, Any] | None, names: tuple[str, str]
) -> StructuredOutputsParams | None:
    """The constraint of OpenAI's format of this `kind`. With the kind text the engine's `own` field decides.

    `names` are the format's field, and the schema's within it.

    Raises:
        RequestError: both fields have a constraint, or the schema is missing.
    """
    field, part = names
    if kind == "text":
        return own_constraint(own)
    if own is not None:
        text = f"{field} cannot be combined with the engine's own field for it; leave one of them out"
        raise RequestError(text, field)
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if schema is None:
        raise RequestError(f"{field} of type json_schema needs {part}", f"{field}.{part}")
    return StructuredOutputsParams(json=schema)


def own_constraint(given: StructuredOutputs | None) -> StructuredOutputsParams | None:
    """The constraint in the engine's own field.

    Raises:
        RequestError: a part of it is not supported, or it has no constraint or several.
    """
    if given is None:
        return None
    refuse_unsupported(given, "structured_outputs.")
    return StructuredOutputsParams(**{name: getattr(given, name) for name in StructuredOutputsParams.__struct_fields__})


def num_chat_logprobs(request: ChatRequest, model: ModelInfo) -> int | None:
    """The number of likeliest tokens with log-probabilities beside each token's own; None for no log-probabilities.

    Raises:
        RequestError: `top_logprobs` without `logprobs`, or more of them than the model gives.
    """
    num_top = num_top_logprobs(request.top_logprobs, model)
    if num_top and not request.logprobs:
        raise RequestError("top_logprobs requires logprobs: true", "top_logprobs")
    return num_top if request.logprobs else None


def num_top_logprobs(count: int | None, model: ModelInfo) -> int:
    """The number of likeliest tokens that `top_logprobs` asks for.

    Raises:
        RequestError: they are more than the model gives.
    """
    limit = model.max_logprobs
    check("top_logprobs", count, -1 <= (count or 0) <= limit, f"from -1 (all) to {limit} (--max-logprobs)")
    return num_logprobs("top_logprobs", count, model) or 0


def scheduling_params(request: EngineRequest, context: RequestContext, model: ModelInfo) -> SchedulingParams:
    """A request's scheduling parameters, checked. The tenant comes from the context only.

    Raises:
        RequestError: a value is out of range.
    """
    retention = request.prompt_cache_retention
    if retention is not None:
        check("prompt_cache_retention", f"{retention:.80}", retention in _OPENAI_RETENTIONS, "in_memory or 24h")
    kv_cache_retention: Retention = "default" if retention is None else _OPENAI_RETENTIONS[retention]
    if kv_cache_retention == "long" and not model.saves_kv_blocks:
        context.fields.ignore_hint("prompt_cache_retention", refusable=False)
    return scheduling_from(
        context,
        request.priority,
        timeout=request.timeout,
        ttft_target=request.ttft_target,
        tpot_target=request.tpot_target,
        cache_salt=request.cache_salt,
        kv_cache_retention=kv_cache_retention,
    )


def _ends(request: EngineRequest) -> dict[str, Any]:
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return {
        "stop": tuple(stop),
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "include_stop_str_in_output": request.include_stop_str_in_output is True,
    }


def _check_guided(request: GenerationRequest, constraint: StructuredOutputsParams | None) -> None:
    """Refuse vLLM's older fields, unless a newer one asks for the same constraint: some programs send both."""
    for name in ("json", "regex", "choice", "grammar"):
        older = getattr(request, f"guided_{name}")
        if older is not None and (
            constraint is None or _parsed(older, name) != _parsed(getattr(constraint, name), name)
        ):
            remedy = f"use structured_outputs.{name}" if request.response_format is None else "leave it out"
            raise RequestError(f"guided_{name} is not supported; {remedy}", f"guided_{name}")


def _parsed(value: Any, name: str) -> Any:
    """A JSON schema, decoded if it is a text; any other value as it is."""
    if name != "json" or not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _constraint(request: GenerationRequest) -> StructuredOutputsParams | None:
    field = format_field(request)
    if field is None:
        constraint = own_constraint(request.structured_outputs)
    else:
        kind, schema = _format(request)
        part = "json_schema" if field == "response_format" else "schema"
        constraint = structured_outputs(request.structured_outputs, kind, schema, (field, part))
    _check_guided(request, constraint)
    return constraint


def _format(request: GenerationRequest) -> tuple[str, dict[str, Any] | None]:
    """The kind of the format that a request asks for, and its schema."""
    given, ollamas = request.response_format, request.format
    if given is None:
        return ("json_object", None) if ollamas == "json" else ("json_schema", cast("dict[str, Any]", ollamas))
    if ollamas:
        raise RequestError("format cannot be combined with response_format; leave one of them out", "format")
    own = None if given.json_schema is None else given.json_schema.schema
    if given.schema is None:
        return given.type or "text", own
    if own is not None or given.type not in ("json_object", "json_schema"):
        text = "response_format.schema needs the type json_object, and no json_schema beside it"
        raise RequestError(text, "response_format.schema")
    return "json_schema", given.schema
