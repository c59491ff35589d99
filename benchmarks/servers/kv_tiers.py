"""The gain of a KV store after a restart: TTFT of a long prompt whose blocks are on disk, beside the cold TTFT.

Conversations that return are among the workloads of `benchmarks/peers`, beside llama.cpp.
"""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import Record
from pyllm import AsyncEngine, SamplingParams
from tests.tiny_model import write_tiny_model

TEXT = Path(__file__).parents[1] / "perplexity.txt"
PROMPT_TOKENS = 2000
RUNS = 5
_LLAMA_1B = {
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 64,
    "layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "vocab_size": 32_768,
    "max_position_embeddings": 4096,
}
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def restarts() -> Iterator[Record]:
    """Seconds to the first token of a system prompt: cold, on the device, and from disk after a restart."""
    yield from asyncio.run(_restarts("restart_ttft_s", ""))


def restarts_of_1b() -> Iterator[Record]:
    """The figures of `restarts` for random weights in the shape of Llama 3.2 1B, in bfloat16."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "1b", **_LLAMA_1B)
        yield from asyncio.run(_restarts("restart_1b_ttft_s", model, dtype="bfloat16", kv_cache_memory_bytes="1GiB"))


FIGURES = {"kv_tiers.restart": restarts, "kv_tiers.restart_1b": restarts_of_1b}


async def _restarts(figure: str, model: str, **more: Any) -> list[Record]:
    with tempfile.TemporaryDirectory() as folder:
        options = {"kv_cache_dir": folder, "kv_cache_disk_size": "8GiB", "max_model_len": 4096, **more}
        cold, hot, warm = [], [], []
        for run in range(RUNS):
            async with _engine(model, options) as engine:
                prompt = _tokens(engine, PROMPT_TOKENS, start=run)
                cold.append((await _first_token(engine, prompt)).seconds)
                hot.append((await _first_token(engine, prompt)).seconds)
                await _saved(engine)
            is_dropped = _drop_page_cache()
            async with _engine(model, options) as engine:
                answer = await _first_token(engine, prompt)
            assert answer.num_cached_tokens > 0.9 * PROMPT_TOKENS, answer
            warm.append(answer.seconds)
    seconds = {kind: round(statistics.median(runs), 4) for kind, runs in (("cold", cold), ("device", hot))}
    value = round(statistics.median(warm), 4)
    page_cache = "dropped" if is_dropped else "warm"
    return [
        {
            "name": f"kv_tiers.{figure}",
            "value": value,
            "unit": "s",
            "tokens": PROMPT_TOKENS,
            "cold": seconds["cold"],
            "device": seconds["device"],
            "of_cold": round(value / seconds["cold"], 3),
            "page_cache": page_cache,
        }
    ]


class _Answer(NamedTuple):
    seconds: float  # to the first token
    num_cached_tokens: int


async def _first_token(engine: AsyncEngine, prompt: Sequence[int], max_tokens: int = 1) -> _Answer:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    begin, seconds = time.perf_counter(), 0.0
    outputs = []
    async for each in engine.generate({"prompt_token_ids": list(prompt)}, params):
        seconds = seconds or time.perf_counter() - begin
        outputs.append(each)
    return _Answer(seconds, outputs[-1].num_cached_tokens or 0)


async def _saved(engine: AsyncEngine) -> None:
    """Wait until all saves have ended."""
    for _ in range(600):
        if not (await engine.stats()).get("num_saving_blocks", 0):
            return
        await asyncio.sleep(0.05)


def _tokens(engine: AsyncEngine, count: int, start: int = 0) -> list[int]:
    """Tokens of natural text from word `start` on, repeated as needed."""
    words = TEXT.read_text().split()
    text = " ".join(itertools.islice(itertools.cycle(words), start, start + count))
    return engine.get_tokenizer().encode(text)[:count]


@asynccontextmanager
async def _engine(model: str, options: dict[str, Any]) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(model, **options) as engine:
        await _first_token(engine, _tokens(engine, 20, start=3000), 4)  # The first step of a process costs more.
        yield engine


def _drop_page_cache() -> bool:
    """Drop the page cache; return whether it was possible: only root may."""
    try:
        _DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True
