"""The scheduler alone, through its Python entry point: schedule and commit of decoding rows, and admission."""

import time
from array import array
from collections.abc import Iterator

from benchmarks.record import Record, percentiles
from pyllm._rust import Plan, Scheduler
from pyllm.messages import PLAN_SECTIONS, plan_offsets

BLOCK_SIZE = 16
CONTEXT = 1024
STEPS = 300
# The first rows decode already while the last are prefilled; none may end before the last step is timed.
MAX_TOKENS = STEPS + 256


def run() -> Iterator[Record]:
    for rows in (64, 256, 1024):
        yield percentiles("scheduler.step_us", decode(rows), rows=rows)
    yield percentiles("scheduler.add_us", add(8000), tokens=8000)


def decode(rows: int) -> list[float]:
    """Seconds of each step with `rows` requests decoding, each with 1,024 tokens of context, the prefix cache on."""
    scheduler = make(rows, num_blocks=rows * (CONTEXT + MAX_TOKENS + BLOCK_SIZE) // BLOCK_SIZE)
    for request in range(rows):
        prompt = array("i", [request + 1, *range(CONTEXT - 1)]).tobytes()
        scheduler.add(0, request, prompt, seed=request, max_tokens=MAX_TOKENS)
    tokens = array("i", [7] * rows).tobytes()
    while True:  # prefill, until every row decodes
        plan = scheduler.schedule(0.0)
        assert plan is not None
        starts = sampled_starts(plan)
        scheduler.commit(plan.step, starts, tokens[: 4 * array("i", starts)[-1]])
        if plan.num_rows == rows == plan.num_tokens:
            break
    scheduler.take_deltas(0)
    starts = array("i", range(rows + 1)).tobytes()
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        plan = scheduler.schedule(0.0)
        assert plan is not None
        memoryview(plan)
        scheduler.commit(plan.step, starts, tokens)
        scheduler.take_deltas(0)
        seconds.append(time.perf_counter() - begin)
    return seconds


def add(tokens: int) -> list[float]:
    """Seconds to take in one prompt of `tokens` tokens, hashing included."""
    scheduler = make(256, num_blocks=1 << 20)
    seconds = []
    for request in range(200):
        prompt = array("i", [request, *range(tokens - 1)]).tobytes()
        begin = time.perf_counter()
        scheduler.add(0, request, prompt, seed=0, max_tokens=16)
        seconds.append(time.perf_counter() - begin)
    return seconds


def make(rows: int, num_blocks: int) -> Scheduler:
    return Scheduler(
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        max_model_len=16384,
        vocab_size=1 << 20,
        enable_prefix_caching=True,
    )


def sampled_starts(plan: Plan) -> bytes:
    """The plan's own section, as the worker would send it back."""
    counts = tuple(plan.counts)
    index = [name for name, _ in PLAN_SECTIONS].index("sampled_starts")
    begin = plan_offsets(counts)[index]
    return bytes(memoryview(plan)[begin : begin + 4 * counts[index]])
