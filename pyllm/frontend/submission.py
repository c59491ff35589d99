"""What a request becomes before it goes out: its limits checked, its defaults filled in. Knows no core and no text."""

import secrets
from array import array
from collections.abc import Sequence

from pyllm.errors import RequestError, RequestTooLargeError
from pyllm.messages import ModelInfo, Sampling, Submit
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams

Prompt = Sequence[int] | bytes | bytearray | memoryview


def prepare(
    prompt: Prompt, params: SamplingParams, model: ModelInfo, scheduling: SchedulingParams = DEFAULT_SCHEDULING
) -> Submit:
    """The `Submit` of a fresh request, still without epoch and id.

    `prompt` is token ids, or packed little-endian int32. The seed is drawn here where the caller gave none, and the
    model's end-of-sequence ids join the stop tokens unless they are to be ignored.

    Raises:
        RequestError: the prompt is empty, an id is outside the vocabulary, or the samples are too many.
        RequestTooLargeError: the request can never fit the context or the KV cache; the text has the numbers.
    """
    # Each sample takes a slot and a row of logits of its own, so more than these never run together.
    if params.n > model.max_num_seqs:
        text = (
            f"n must be at most {model.max_num_seqs}, the sequences that run at once (--max-num-seqs), got {params.n}"
        )
        raise RequestError(text, "n")
    # Before the ids are looked at: millions of them would hold up the event loop.
    num_tokens = _num_tokens(prompt)
    if not num_tokens:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    max_tokens = _max_tokens(num_tokens, params.max_tokens, model)
    tokens = pack_tokens(prompt)
    if min(tokens) < 0 or max(tokens) >= model.vocab_size:
        outside = next(token for token in tokens if not 0 <= token < model.vocab_size)
        raise RequestError(f"token id {outside} is outside the vocabulary of {model.vocab_size} tokens", "prompt")
    stop = set(params.stop_token_ids)
    if not params.ignore_eos:
        stop.update(model.eos_token_ids)
    return Submit(
        epoch=0,
        request=0,
        prompt=tokens.tobytes(),
        seed=secrets.randbits(63) if params.seed is None else params.seed % 2**64,
        max_tokens=max_tokens,
        sampling=Sampling(params.temperature, max(params.top_k, 0), params.top_p, params.min_p),
        stop_token_ids=array("i", sorted(stop)).tobytes(),
        n=params.n,
        tenant=scheduling.tenant,
        priority=scheduling.priority,
        timeout=scheduling.timeout,
        ttft_target=scheduling.ttft_target,
        tpot_target=scheduling.tpot_target,
    )


def refuse_prompt(length: str, model: ModelInfo) -> RequestTooLargeError:
    """The error for a prompt that leaves no room for output; `length` says how many tokens it has."""
    return RequestTooLargeError(
        f"This model's maximum context length is {model.max_model_len} tokens. However, your prompt has {length} "
        f"tokens and at least one more is needed for the output. Please shorten the prompt.",
        "prompt",
    )


def pack_tokens(prompt: Prompt) -> "array[int]":
    """Token ids as int32; raises RequestError for what is none."""
    tokens = array("i")
    try:
        if isinstance(prompt, bytes | bytearray | memoryview):
            tokens.frombytes(prompt)
        else:
            tokens.extend(prompt)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"the prompt is not a sequence of 32-bit token ids: {error}", "prompt") from None
    return tokens


def _num_tokens(prompt: Prompt) -> int:
    if isinstance(prompt, bytes | bytearray | memoryview):
        return -(-memoryview(prompt).nbytes // 4)
    return len(prompt)


def _max_tokens(num_prompt_tokens: int, wanted: int | None, model: ModelInfo) -> int:
    room = model.max_model_len - num_prompt_tokens
    if room < 1:
        raise refuse_prompt(str(num_prompt_tokens), model)
    # The last token that is sampled is never written to the cache.
    cache_room = model.kv_cache_tokens - num_prompt_tokens + 1
    max_tokens = min(room, max(cache_room - 1, 1)) if wanted is None else min(room, wanted)
    if max_tokens > cache_room:
        raise RequestTooLargeError(
            f"The KV cache holds {model.kv_cache_tokens} tokens. However, your prompt has {num_prompt_tokens} tokens "
            f"and {max_tokens} were asked for. Please shorten the prompt, lower max_tokens, or start the engine with "
            "a larger --kv-cache-memory-bytes.",
            "prompt" if cache_room < 1 else "max_tokens",
        )
    return max_tokens
