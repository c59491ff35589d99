"""The time to encode prompts: for the first time, again, and in a continued conversation; alone and together.

Each figure is the median of some runs with different texts, until the ids are ready, including threads.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Iterator
from random import Random

import uvloop

from benchmarks.record import Record
from pyllm.bench.prompt_sets import WORDS
from pyllm.config.option_reading import engine_config
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.launch.resolve import resolve_config
from pyllm.wire.messages import ModelInfo

RUNS = 9
BATCH = 64
LENGTHS = (50, 1_000, 10_000, 100_000)  # tokens
TURN_TOKENS = 200


def run() -> Iterator[Record]:
    prompts = _prompts()
    for length in LENGTHS:
        yield from uvloop.run(_single(prompts, length))
    yield from uvloop.run(_batch(prompts))
    yield from uvloop.run(_conversation(prompts))


async def _single(prompts: PromptEncoder, length: int) -> list[Record]:
    first: list[float] = []
    again: list[float] = []
    for seed in range(RUNS):
        text = _text(seed, length)
        first.append(await _seconds(prompts.encode([text])))
        again.append(await _seconds(prompts.encode([_text(seed, length)])))
    return [_record("text", first, length), _record("the same text again", again, length)]


async def _batch(prompts: PromptEncoder) -> list[Record]:
    """Concurrent requests; microseconds for each."""
    length = LENGTHS[1]
    first: list[float] = []
    again: list[float] = []
    for seed in range(RUNS):
        texts = [_text(1000 + seed * BATCH + number, length) for number in range(BATCH)]
        for seconds in (first, again):
            together = asyncio.gather(*(prompts.encode([text]) for text in texts))
            seconds.append(await _seconds(together) / BATCH)
    return [_record("text", first, length, BATCH), _record("the same text again", again, length, BATCH)]


async def _conversation(prompts: PromptEncoder) -> list[Record]:
    """A conversation that grows by a question and its answer each time, up to the length of the longest text."""
    length = LENGTHS[-1] // 10
    seconds = []
    for seed in range(RUNS):
        messages = []
        for turn in range(length // TURN_TOKENS):
            role = "user" if turn % 2 == 0 else "assistant"
            messages.append({"role": role, "content": _text(100_000 + seed * length + turn, TURN_TOKENS)})
        await prompts.encode_chat(messages[:-2])
        seconds.append(await _seconds(prompts.encode_chat(messages)))
    return [_record("a conversation that goes on", seconds, length)]


async def _seconds(work: Awaitable[object]) -> float:
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


def _record(kind: str, seconds: list[float], tokens: int, requests: int = 1) -> Record:
    value = round(statistics.median(seconds) * 1e6, 1)
    return {"name": "encoding.us", "value": value, "unit": "us", "kind": kind, "tokens": tokens, "requests": requests}


def _text(seed: int, tokens: int) -> str:
    return " ".join(Random(seed).choices(WORDS, k=tokens))


def _prompts() -> PromptEncoder:
    engine, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    model = ModelInfo(
        name="embedded",
        max_model_len=1 << 17,
        vocab_size=checkpoint.spec.vocab_size,
        eos_token_ids=checkpoint.tokenizer.eos_token_ids,
        dtype=engine.model.dtype,
        quantization=engine.model.quantization,
        kv_cache_dtype=engine.cache.kv_cache_dtype,
        block_size=engine.cache.block_size,
        num_blocks=1 << 13,
        kv_cache_tokens=1 << 17,
        max_num_seqs=engine.scheduler.max_num_seqs,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens,
        tensor_parallel_size=1,
    )
    return PromptEncoder(Tokenizer(checkpoint.tokenizer), ChatTemplate.of(checkpoint.tokenizer), model)
