"""What the tiers of the KV cache give: the first token of a long prompt after a restart, and conversations that return.

With the embedded model and natural text. In each figure the tiers are compared with none, in the same run.
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

TEXT = Path(__file__).parents[1] / "perplexity.txt"
PROMPT_TOKENS = 2000
RUNS = 5
DISK = {"kv_cache_disk_size": "8GiB"}

CONVERSATIONS, TURNS, USER_TOKENS, ANSWER_TOKENS = 200, 3, 160, 32
AT_ONCE = 8  # conversations that are answered at the same time
KEPT = 0.1  # of the tokens of all conversations: what the device has room for
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def restarts() -> Iterator[Record]:
    """Seconds to the first token of a system prompt: cold, on the device, and from disk after a restart."""
    yield from asyncio.run(_restarts(""))


def returns() -> Iterator[Record]:
    """Tokens a second and seconds to the first token of conversations that come back, by tier."""
    with tempfile.TemporaryDirectory() as folder:
        tiers: dict[str, dict[str, Any]] = {
            "none": {},
            "host": {"kv_offloading_size": "8GiB"},
            "disk": {"kv_cache_dir": folder, **DISK},
        }
        for tier, options in tiers.items():
            yield from asyncio.run(_returns(tier, options))


FIGURES = {"kv_tiers.restart": restarts, "kv_tiers.returning": returns}


async def _restarts(model: str) -> list[Record]:
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"kv_cache_dir": folder, **DISK, "max_model_len": 4096}
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
            "name": "kv_tiers.restart_ttft_s",
            "value": value,
            "unit": "s",
            "tokens": PROMPT_TOKENS,
            "cold": seconds["cold"],
            "device": seconds["device"],
            "of_cold": round(value / seconds["cold"], 3),
            "page_cache": page_cache,
        }
    ]


async def _returns(tier: str, options: dict[str, Any]) -> list[Record]:
    length = TURNS * (USER_TOKENS + ANSWER_TOKENS)
    num_blocks = int(KEPT * CONVERSATIONS * length) // 16
    limits = {"num_gpu_blocks_override": num_blocks, "max_model_len": 2048, "max_num_seqs": AT_ONCE}
    async with _engine("", options | limits) as engine:
        histories = [_tokens(engine, USER_TOKENS, start=7 * number) for number in range(CONVERSATIONS)]
        questions = _tokens(engine, USER_TOKENS * 40)
        answers: list[_Answer] = []
        begin = time.perf_counter()
        for turn in range(TURNS):
            waiting = iter(range(CONVERSATIONS))

            async def talk(turn: int = turn, waiting: Iterator[int] = waiting) -> None:
                for number in waiting:
                    answer = await _first_token(engine, histories[number], ANSWER_TOKENS)
                    answers.append(answer)
                    start = (31 * number + 977 * turn) % (len(questions) - USER_TOKENS)
                    histories[number] += [*answer.tokens, *questions[start : start + USER_TOKENS]]

            await asyncio.gather(*(talk() for _ in range(AT_ONCE)))
        seconds = time.perf_counter() - begin
    later = answers[CONVERSATIONS:]
    cached = sum(answer.num_cached_tokens for answer in later) / sum(answer.num_prompt_tokens for answer in later)
    case: Record = {"kind": tier, "streams": AT_ONCE, "requests": len(answers)}
    rate: Record = {"name": "kv_tiers.returning_tokens_s", "unit": "tokens/s", **case}
    rate["value"] = round(sum(answer.num_prompt_tokens + len(answer.tokens) for answer in answers) / seconds, 1)
    rate["share"] = round(cached, 3)
    first: Record = {"name": "kv_tiers.returning_ttft_s", "unit": "s", **case}
    first["value"] = round(statistics.median(answer.seconds for answer in later), 4)
    first["p99"] = round(statistics.quantiles((answer.seconds for answer in later), n=100)[98], 4)
    return [rate, first]


class _Answer(NamedTuple):
    seconds: float  # to the first token
    num_prompt_tokens: int
    num_cached_tokens: int
    tokens: tuple[int, ...]


async def _first_token(engine: AsyncEngine, prompt: Sequence[int], max_tokens: int = 1) -> _Answer:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    begin, seconds = time.perf_counter(), 0.0
    outputs = []
    async for each in engine.generate({"prompt_token_ids": list(prompt)}, params):
        seconds = seconds or time.perf_counter() - begin
        outputs.append(each)
    output = outputs[-1]
    return _Answer(seconds, len(prompt), output.num_cached_tokens or 0, tuple(output.outputs[0].token_ids))


async def _saved(engine: AsyncEngine) -> None:
    """Until nothing is left to be saved."""
    for _ in range(600):
        if not (await engine.stats()).get("num_saving_blocks", 0):
            return
        await asyncio.sleep(0.05)


def _tokens(engine: AsyncEngine, count: int, start: int = 0) -> list[int]:
    """Tokens of natural text from its word number `start` on, over and over."""
    words = TEXT.read_text().split()
    text = " ".join(itertools.islice(itertools.cycle(words), start, start + count))
    return engine.get_tokenizer().encode(text)[:count]


@asynccontextmanager
async def _engine(model: str, options: dict[str, Any]) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(model, **options) as engine:
        await _first_token(engine, _tokens(engine, 20, start=3000), 4)  # The first step of a process costs more.
        yield engine


def _drop_page_cache() -> bool:
    """Whether it could be: only root may."""
    try:
        _DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True
