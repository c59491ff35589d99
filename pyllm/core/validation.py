"""Checks submitted requests: numbers in their ranges, ids in the vocabulary. No request that passes can crash a worker.

Knows neither the scheduler, which checks its own arguments, nor how a worker uses the rest.
"""

from array import array
from collections.abc import Collection
from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.parameters.arguments import RangeChecks, check
from pyllm.parameters.sampling_params import (
    LEAST_POSITIVE,
    MAX_BAD_WORDS_TOKENS,
    MAX_EXTRA_ARGS_BYTES,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROB_TOKEN_IDS,
    SamplingParams,
    arguments_by_plugin,
)
from pyllm.parameters.scheduling_params import MAX_NAME_CHARACTERS
from pyllm.parameters.structured_outputs_params import MAX_GRAMMAR_BYTES
from pyllm.wire.messages import POOLING, ModelInfo, Sampling, Submit

MAX_AGE = 1e9  # seconds that a request may have waited already
MAX_EXTRA_ARGS_DEPTH = 32  # A worker must be able to decode them, at any depth of its call stack.
# Here `logprobs` is None or a number below the model's own limit.
_SAMPLING_RANGES = RangeChecks(SamplingParams, {*Sampling.__struct_fields__} - {"logprobs", "prompt_logprobs"})
_SUBMIT_RANGES = RangeChecks(SamplingParams, Submit.__struct_fields__)


def check_submit(submit: Submit, model: ModelInfo, sampling_plugins: Collection[str]) -> None:
    """Refuse sampling parameters out of range and unsupported fields; the scheduler checks the rest.

    `sampling_plugins` are the names of logits processors and samplers that workers can load.

    Raises:
        RequestError: the text names the field.
    """
    check("age", submit.age, 0 <= submit.age < MAX_AGE, f"from 0 to {MAX_AGE:g} seconds")
    size = len(submit.name)
    check("name", size, size <= MAX_NAME_CHARACTERS, f"at most {MAX_NAME_CHARACTERS} characters")
    _SUBMIT_RANGES.check(submit)
    sampling = submit.sampling
    if sampling.pooling and sampling != POOLING.get(sampling.pooling):
        kinds = " or ".join(POOLING)
        text = f"pooling must be {kinds} and excludes all other sampling, got {sampling.pooling!r:.80}"
        raise RequestError(text, "pooling")
    if not sampling.pooling and not model.can_generate:
        raise RequestError(f"{model.name} only embeds", "model")
    _check_numbers(sampling, submit.max_tokens, model)
    if submit.beam_width:
        num_candidates = 2 * submit.beam_width
        is_enough = sampling.logprobs == num_candidates
        check("logprobs", sampling.logprobs, is_enough, f"twice the beam_width, {num_candidates}")
    _check_ids("allowed_token_ids", sampling.allowed_token_ids, model)
    _check_ids("stop_token_ids", sampling.stop_token_ids, model)
    _check_ids("logprob_token_ids", sampling.logprob_token_ids, model)
    number = len(sampling.logprob_token_ids) // 4
    check("logprob_token_ids", number, number <= MAX_LOGPROB_TOKEN_IDS, f"at most {MAX_LOGPROB_TOKEN_IDS} tokens")
    if number:
        check("logprobs", sampling.logprobs, sampling.logprobs == 0, "0 beside logprob_token_ids")
    for name in ("bad_words", "thinking_starts", "thinking_ends"):
        _check_sequences(name, getattr(sampling, name), model)
    _check_logit_bias(sampling.logit_bias, model)
    size = len(sampling.grammar.encode())
    check("grammar", size, size <= MAX_GRAMMAR_BYTES, f"at most {MAX_GRAMMAR_BYTES} bytes")
    _check_extra_args(sampling.extra_args, sampling_plugins)


def _check_numbers(sampling: Sampling, max_tokens: int, model: ModelInfo) -> None:
    _SAMPLING_RANGES.check(sampling)
    for name in ("temperature", "top_p"):
        number = getattr(sampling, name)
        check(name, number, number == 0.0 or number >= LEAST_POSITIVE, f"at least {LEAST_POSITIVE:g} where it is not 0")
    check("thinking_budget", sampling.thinking_budget, 0 <= sampling.thinking_budget < 2**31, "0 or more, below 2**31")
    least = sampling.min_tokens
    check("min_tokens", least, least <= max_tokens, f"from 0 to max_tokens, {max_tokens}")
    for name in ("logprobs", "prompt_logprobs"):
        number = getattr(sampling, name)
        if number is not None:
            check(name, number, 0 <= number <= model.max_logprobs, f"from 0 to {model.max_logprobs} (--max-logprobs)")


def _check_ids(name: str, packed: bytes, model: ModelInfo) -> None:
    """Check packed token ids: all in the vocabulary, and at most as many as it has. May be empty."""
    size = len(packed)
    check(name, size, size % 4 == 0 and size <= 4 * model.vocab_size, f"at most {model.vocab_size} int32, in bytes")
    tokens = array("i", packed)
    for token in (min(tokens), max(tokens)) if tokens else ():
        check(name, token, 0 <= token < model.vocab_size, f"token ids below {model.vocab_size}")


def _check_sequences(name: str, sequences: tuple[bytes, ...], model: ModelInfo) -> None:
    check(name, len(sequences), len(sequences) <= MAX_BAD_WORDS_TOKENS, f"at most {MAX_BAD_WORDS_TOKENS}")
    num_tokens = sum(map(len, sequences)) // 4
    check(name, num_tokens, num_tokens <= MAX_BAD_WORDS_TOKENS, f"at most {MAX_BAD_WORDS_TOKENS} tokens")
    for sequence in sequences:
        check(name, len(sequence), len(sequence) > 0, "at least one token each")
        _check_ids(name, sequence, model)


def _check_logit_bias(logit_bias: dict[int, float], model: ModelInfo) -> None:
    if not logit_bias:
        return
    number = len(logit_bias)
    check("logit_bias", number, number <= MAX_LOGIT_BIASES, f"at most {MAX_LOGIT_BIASES} tokens")
    for token in (min(logit_bias), max(logit_bias)):
        check("logit_bias", token, 0 <= token < model.vocab_size, f"by token ids below {model.vocab_size}")
    # NaN is out of bounds, too.
    beyond = next((bias for bias in logit_bias.values() if not abs(bias) <= MAX_LOGIT_BIAS), None)
    check("logit_bias", beyond, beyond is None, f"from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}")


def _check_extra_args(arguments: dict[str, Any], sampling_plugins: Collection[str]) -> None:
    if not arguments:
        return
    arguments_by_plugin(arguments, sampling_plugins)
    if _is_nested_deeper(arguments, MAX_EXTRA_ARGS_DEPTH):
        raise RequestError(f"extra_args are nested more than {MAX_EXTRA_ARGS_DEPTH} deep", "extra_args")
    size = len(msgspec.msgpack.encode(arguments))
    check("extra_args", size, size <= MAX_EXTRA_ARGS_BYTES, f"at most {MAX_EXTRA_ARGS_BYTES} bytes")


def _is_nested_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(outer, dict | list) for outer in level)
