"""Makes a `Submit` from parameters: checks limits, and fills in defaults. Knows no tokenizer."""

import secrets
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pyllm.client.prompt_tokens import Prompt, known_tokens
from pyllm.errors import Field, RequestError, RequestTooLargeError
from pyllm.parameters.arguments import shown
from pyllm.parameters.sampling_params import (
    LEAST_POSITIVE,
    MAX_EXTRA_ARGS_BYTES,
    MAX_LOGIT_BIAS,
    RequestOutputKind,
    SamplingParams,
)
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams
from pyllm.parameters.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams
from pyllm.wire.messages import POOLING, ModelInfo, Sampling, Submit

# Parameters about text, or about outputs put together: their neutral values, and advice for errors.
_OF_TEXT: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("stop", ((), [], "", None), "give stop_token_ids, or end the request where you see the text"),
    ("include_stop_str_in_output", (False,), "it is about stop strings, so leave it out"),
    ("bad_words", ((), [], None), "give bad_words_token_ids"),
    ("skip_special_tokens", (True,), "deltas are all token ids, special ones too, so leave it out"),
    ("spaces_between_special_tokens", (True,), "deltas are token ids, so leave it out"),
    ("truncate_prompt_tokens", (None,), "give as many token ids as you want"),
    ("output_kind", (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA), "outputs are deltas, so leave it out"),
    ("stream_interval", (None, 1), "deltas come with each step, so leave it out"),
)
# The numbers that workers get, most of them as they are.
_DEFAULTS = SamplingParams()
SAMPLING_NUMBERS = tuple(
    name
    for name in Sampling.__struct_fields__
    if name != "min_tokens" and type(getattr(_DEFAULTS, name, None)) in (int, float)
)
_PLAIN_NUMBERS = tuple(name for name in SAMPLING_NUMBERS if name not in ("temperature", "top_k", "top_p"))


def random_seed() -> int:
    """An unpredictable seed."""
    return secrets.randbits(63)


def only_embeds(model: ModelInfo) -> RequestError:
    """The error of a request for text to a model that has none."""
    what = "only classifies: use /rerank, /score and /classify" if model.labels else "only embeds: use /v1/embeddings"
    return RequestError(f"{model.name} {what}, or {'score()' if model.labels else 'embed()'}", "model")


def refuse_embedding(model: ModelInfo) -> None:
    """Refuse a classifier where embeddings are wanted.

    Raises:
        RequestError: the model is one.
    """
    if model.labels:
        raise RequestError(
            f"{model.name} classifies, and gives no embeddings: use /rerank, /score or /classify", "model"
        )


def refuse_classes(model: ModelInfo) -> None:
    """Refuse a model without classes.

    Raises:
        RequestError: the model has none.
    """
    if not model.labels:
        raise RequestError(f"{model.name} has no classes: its files name no ...ForSequenceClassification", "model")


def prepare(
    prompt: Prompt,
    params: SamplingParams,
    model: ModelInfo,
    scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    draw_seed: Callable[[], int] = random_seed,
) -> Submit:
    """The `Submit` of a fresh request, still without epoch and id.

    `prompt` is token ids, or packed little-endian int32. Without a seed, `draw_seed` draws one. The model's
    end-of-sequence ids join the stop tokens unless `ignore_eos` is set.

    Bad words must be token ids here, and a constraint must be a `ResolvedConstraint`: nothing here knows text.

    Raises:
        RequestError: the prompt is empty, an id is outside the vocabulary, or there are too many samples or
            log-probabilities.
        RequestTooLargeError: the request can never fit the context or the KV cache; the text has the numbers.
    """
    if not model.can_generate:
        raise only_embeds(model)
    # Each sample takes a slot and a row of logits of its own, so more than these never run together.
    if params.n > model.max_num_seqs:
        text = (
            f"n must be at most {model.max_num_seqs}, the sequences that run at once (--max-num-seqs), got {params.n}"
        )
        raise RequestError(text, "n")
    # The length is checked before the ids: millions of them would block the event loop.
    num_tokens = _num_tokens(prompt)
    if not num_tokens:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    max_tokens = _max_tokens(num_tokens, 1 if params.max_tokens == 0 else params.max_tokens, model)
    tokens = known_tokens(prompt, model.vocab_size)
    stop = set(params.stop_token_ids or ())
    if not params.ignore_eos:
        stop.update(model.eos_token_ids)
    # Ids outside the vocabulary are never sampled: one list may serve models of several sizes.
    stop_token_ids = array("i", sorted(token for token in stop if token < model.vocab_size)).tobytes()
    min_tokens = min(params.min_tokens, max_tokens)
    submit = Submit(
        epoch=0,
        request=0,
        prompt=tokens.packed,
        seed=draw_seed() if params.seed is None else params.seed % 2**64,
        max_tokens=max_tokens,
        sampling=_sampling(params, min_tokens, stop_token_ids, model),
        stop_token_ids=stop_token_ids,
        n=params.n,
        min_tokens=min_tokens,
        beam_width=params.beam_width,
        length_penalty=params.length_penalty,
    )
    return _scheduled(submit, scheduling)


def num_logprobs(name: str, count: int | None, model: ModelInfo) -> int | None:
    """The number of likely tokens that the parameter `name` asks for; -1 is the whole vocabulary.

    Raises:
        RequestError: it is above the engine's limit.
    """
    if count is None:
        return None
    if count == -1 and model.max_logprobs < model.vocab_size:
        text = f"{name} -1 is all {model.vocab_size} tokens of the vocabulary, and at most {model.max_logprobs} come"
        raise RequestError(f"{text}: start the engine with --max-logprobs -1", name)
    _check_logprobs(name, count, name, model)
    return model.vocab_size if count == -1 else count


def refuse_text_parameters(params: SamplingParams) -> None:
    """Refuse parameters that need a tokenizer, or a caller that puts deltas together.

    Raises:
        RequestError: names the first such parameter.
    """
    for name, neutral, reason in _OF_TEXT:
        if getattr(params, name) not in neutral:
            raise RequestError(f"{name}: there is no tokenizer here; {reason}", name)


def prepare_embedding(
    prompt: Prompt,
    model: ModelInfo,
    scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    dimensions: int | None = None,
) -> Submit:
    """The `Submit` that asks for a prompt's embedding, still without epoch and id; `prompt` as for `prepare`.

    Raises:
        RequestError: the prompt is empty, an id is outside the vocabulary, or the model was not trained for this number
            of `dimensions`.
        RequestTooLargeError: the prompt can never fit the context or the KV cache.
    """
    check_dimensions(dimensions, model)
    num_tokens = _num_tokens(prompt)
    if not num_tokens:
        raise RequestError("the input is empty; give at least one token", "input")
    if num_tokens > model.max_model_len:
        raise refuse_input(num_tokens, model)
    if num_tokens > model.kv_cache_tokens:
        raise RequestTooLargeError(
            f"The KV cache holds {model.kv_cache_tokens} tokens. However, your input has {num_tokens} tokens. Please "
            "shorten the input, or start the engine with a larger --kv-cache-memory-bytes.",
            "input",
        )
    tokens = known_tokens(prompt, model.vocab_size + model.second_text_offset, "input")
    submit = Submit(epoch=0, request=0, prompt=tokens.packed, seed=0, max_tokens=0, sampling=POOLING[model.pooling])
    return _scheduled(submit, scheduling)


def check_dimensions(dimensions: int | None, model: ModelInfo) -> None:
    """Refuse a number of dimensions that embeddings of the model cannot be cut to; None: all.

    Raises:
        RequestError: the text has the possible numbers.
    """
    if dimensions is None or dimensions == model.hidden_size:
        return
    if not model.is_matryoshka:
        allowed, reason = f"{model.hidden_size} or left out", ": the model was not trained for shorter embeddings"
    elif sizes := model.matryoshka_dimensions:
        allowed, reason = f"one of {', '.join(map(str, sizes))}", ", for which the model was trained"
    else:
        allowed, reason = f"from 1 to {model.hidden_size}", ""
    if not model.is_matryoshka or dimensions not in (sizes or range(1, model.hidden_size)):
        raise RequestError(f"dimensions must be {allowed}, got {dimensions}{reason}", "dimensions")


def room_for_output(num_prompt_tokens: int, model: ModelInfo) -> int:
    """The number of tokens that the context leaves for the output; 0 or negative if the prompt does not fit."""
    return model.max_model_len - num_prompt_tokens


def most_tokens(first: Submit) -> int:
    """The maximum number of tokens in each sequence of a request, prompt included."""
    return len(first.prompt) // 4 + first.max_tokens


def has_room(model: ModelInfo, first: Submit) -> bool:
    """Whether a core with this model has room for a request of another core, whose limits may be higher."""
    # The last sampled token is never written to the cache.
    return most_tokens(first) <= min(model.max_model_len, model.kv_cache_tokens + 1) and first.n <= model.max_num_seqs


def refuse_input(num_tokens: int, model: ModelInfo, is_exact: bool = True) -> RequestTooLargeError:
    """The error for an input too long to embed; unless `is_exact`, the number is a lower bound."""
    length = num_tokens if is_exact else f"at least {num_tokens}"
    return RequestTooLargeError(
        f"This model's maximum context length is {model.max_model_len} tokens. However, your input has {length} "
        f"tokens. Please shorten the input, or have it cut by truncate_prompt_tokens.",
        "input",
        num_tokens,
        model.max_model_len,
    )


def refuse_prompt(num_tokens: int, model: ModelInfo, is_exact: bool = True) -> RequestTooLargeError:
    """The error for a prompt that leaves no room for output; unless `is_exact`, the number is a lower bound."""
    length = num_tokens if is_exact else f"at least {num_tokens}"
    return RequestTooLargeError(
        f"This model's maximum context length is {model.max_model_len} tokens. However, your prompt has {length} "
        f"tokens and at least one more is needed for the output. Please shorten the prompt.",
        "prompt",
        num_tokens,
        model.max_model_len - 1,
    )


def _scheduled(submit: Submit, scheduling: SchedulingParams) -> Submit:
    """The request with its scheduling parameters, which every kind of request has."""
    return msgspec.structs.replace(
        submit,
        tenant=scheduling.tenant,
        cache_salt=scheduling.cache_salt,
        priority=scheduling.priority,
        timeout=scheduling.timeout,
        ttft_target=scheduling.ttft_target,
        tpot_target=scheduling.tpot_target,
        name=scheduling.name,
        kv_cache_retention=scheduling.kv_cache_retention,
        adapter=scheduling.adapter,
    )


def _sampling(params: SamplingParams, min_tokens: int, stop_token_ids: bytes, model: ModelInfo) -> Sampling:
    if params.beam_width:
        # Each beam has this many candidates; the token sampled beside them has no effect.
        _check_logprobs("n", 2 * params.n, "the candidates of each beam, twice n,", model)
        return Sampling(temperature=0.0, logprobs=2 * params.beam_width)
    named = _pack(params.logprob_token_ids or (), "logprob_token_ids", model)
    logprobs = 0 if named else num_logprobs("logprobs", params.logprobs, model)
    prompt_logprobs = num_logprobs("prompt_logprobs", params.prompt_logprobs, model)
    if params.bad_words:
        text = "bad_words are texts, and there is no tokenizer here; give bad_words_token_ids"
        raise RequestError(text, "bad_words")
    has_budget = params.thinking_token_budget is not None
    if has_budget and not params.reasoning_end_token_ids:
        text = "thinking_token_budget needs reasoning_end_token_ids here, where there is no tokenizer to find them"
        raise RequestError(text, "thinking_token_budget")
    return Sampling(
        temperature=max(params.temperature, LEAST_POSITIVE) if params.temperature else 0.0,
        top_k=max(params.top_k, 0),
        top_p=max(params.top_p, LEAST_POSITIVE),
        **{name: getattr(params, name) for name in _PLAIN_NUMBERS},
        logit_bias=_logit_bias(params.logit_bias or {}, model),
        allowed_token_ids=_pack(sorted(set(params.allowed_token_ids or ())), "allowed_token_ids", model),
        bad_words=_pack_each("bad_words_token_ids", params, model),
        min_tokens=min_tokens,
        stop_token_ids=stop_token_ids if min_tokens else b"",
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=_grammar(params.structured_outputs),
        extra_args=_extra_args(params.extra_args or {}),
        logprob_token_ids=named,
        thinking_budget=params.thinking_token_budget or 0,
        thinking_starts=_pack_each("reasoning_start_token_ids", params, model) if has_budget else (),
        thinking_ends=_pack_each("reasoning_end_token_ids", params, model) if has_budget else (),
    )


def _grammar(constraint: StructuredOutputsParams | None) -> str:
    if constraint is None:
        return ""
    if not isinstance(constraint, ResolvedConstraint):
        raise RequestError(
            "structured_outputs must be a ResolvedConstraint here; make one with pyllm.resolve_constraint",
            "structured_outputs",
        )
    return constraint.grammar


def _check_logprobs(name: str, count: int, meaning: str, model: ModelInfo) -> None:
    if count > model.max_logprobs:
        raise RequestError(f"{meaning} must be at most {model.max_logprobs} (--max-logprobs), got {shown(count)}", name)


def _logit_bias(bias: dict[int, float], model: ModelInfo) -> dict[int, float]:
    _pack(bias, "logit_bias", model)
    return {token: min(max(value, -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS) for token, value in bias.items() if value}


def _extra_args(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments after a round trip through msgpack, so that an engine in one process or several gets the same."""
    if not arguments:
        return {}
    try:
        frame = msgspec.msgpack.encode(arguments)
        decoded = msgspec.msgpack.decode(frame, type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        text = f"extra_args must be a dict of plain values: {error}"
        raise RequestError(text, "extra_args") from None
    if len(frame) > MAX_EXTRA_ARGS_BYTES:
        text = f"extra_args must have at most {MAX_EXTRA_ARGS_BYTES} bytes, got {len(frame)}"
        raise RequestError(text, "extra_args")
    return dict(decoded)


def _pack(tokens: Iterable[int], name: str, model: ModelInfo) -> bytes:
    """Token ids as int32. Raises RequestError, with the field's name, for one outside the vocabulary."""
    packed = array("i", tokens)
    for token in packed:
        if not 0 <= token < model.vocab_size:
            raise RequestError(f"token id {token} is outside the vocabulary of {model.vocab_size} tokens", name)
    return packed.tobytes()


def _pack_each(name: str, params: SamplingParams, model: ModelInfo) -> tuple[bytes, ...]:
    return tuple(_pack(tokens, name, model) for tokens in getattr(params, name))


def _num_tokens(prompt: Prompt) -> int:
    if isinstance(prompt, bytes | bytearray | memoryview):
        return -(-memoryview(prompt).nbytes // 4)
    return len(prompt)


def _max_tokens(num_prompt_tokens: int, wanted: int | None, model: ModelInfo) -> int:
    room = room_for_output(num_prompt_tokens, model)
    if room < 1:
        raise refuse_prompt(num_prompt_tokens, model)
    # The last sampled token is never written to the cache.
    cache_room = model.kv_cache_tokens - num_prompt_tokens + 1
    max_tokens = min(room, max(cache_room - 1, 1)) if wanted is None else min(room, wanted)
    if max_tokens > cache_room:
        raise RequestTooLargeError(
            (
                f"The KV cache holds {model.kv_cache_tokens} tokens. However, your prompt has {num_prompt_tokens} "
                f"tokens and {max_tokens} were asked for. Please shorten the prompt, lower ",
                Field("max_tokens"),
                ", or start the engine with a larger --kv-cache-memory-bytes.",
            ),
            "prompt" if cache_room < 1 else "max_tokens",
        )
    return max_tokens
