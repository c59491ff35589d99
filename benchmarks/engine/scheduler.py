"""The scheduler alone, through its Python entry point: steps of decoding rows, admission, and the cost of a queue."""

import itertools
import re
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from benchmarks.engine import rust_example
from benchmarks.engine.simulated_executor import section
from benchmarks.record import Record, percentiles
from pyllm._rust import Plan, Scheduler
from pyllm.config.engine_settings import SchedulerConfig
from pyllm.core.calls import live_settings
from pyllm.families.state_layout import fitting_states

BLOCK_SIZE = 16
SAMPLED = 7  # the token that each position samples
CONTEXT = 1024
STEPS = 300
# The first rows decode already while the last are prefilled; none may end before the last step is timed.
MAX_TOKENS = STEPS + 256
QUEUES = (100, 100_000)
SWITCHES = 3
# Groups of layers: one with full attention, and the five more of Gemma 3 270M, with a window.
GROUPS = (1, 6)
WINDOW = 512
# Number of prefixes, their tokens, and blocks for one group: all, a half and a third of the blocks of all prefixes.
SHARED_PREFIXES = ((20, 2000, 4000), (20, 2000, 1500), (50, 1000, 1200))
# Conversations over one system prompt, of five turns on average: tokens of this, of a question and of an answer.
CONVERSATIONS, TURNS, SYSTEM, QUESTION, ANSWER = 50, 5, 2000, 100, 100
CONVERSATIONS_AT_ONCE = 8
POLICIES = ("fcfs", "priority", "shortest", "fair")


def step() -> Iterator[Record]:
    for rows in (64, 256, 1024):
        for groups in GROUPS:
            yield percentiles("scheduler.step_us", decode(rows, num_groups=groups), rows=rows, groups=groups)
        seconds = decode(rows, num_states=4 * rows)
        yield percentiles("scheduler.step_us", seconds, rows=rows, groups=1, states=True)


def step_waiting() -> Iterator[Record]:
    for policy in POLICIES:
        for waiting in QUEUES:
            seconds = decode(256, waiting, policy)
            yield percentiles("scheduler.step_waiting_us", seconds, rows=256, waiting=waiting, policy=policy)


def step_preempting() -> Iterator[Record]:
    for policy in POLICIES:
        for waiting in QUEUES:
            seconds, rows = preempt(256, waiting, policy)
            yield percentiles("scheduler.step_preempting_us", seconds, rows=round(rows), waiting=waiting, policy=policy)


def policy_switch() -> Iterator[Record]:
    for policy, seconds in switch_policies(QUEUES[-1]).items():
        yield percentiles("scheduler.policy_switch_us", seconds, waiting=QUEUES[-1], policy=policy)


def add() -> Iterator[Record]:
    yield percentiles("scheduler.add_us", add_prompts(8000), tokens=8000)


def admit_cached() -> Iterator[Record]:
    yield percentiles("scheduler.admit_cached_us", admit_cached_prompts(8000), tokens=8000)


def step_instructions() -> Iterator[Record]:
    models = [(groups, False) for groups in GROUPS] + [(1, True)]
    for rows, (groups, has_states) in itertools.product((64, 256, 1024), models):
        value = instructions(rows, groups, has_states)
        if value is None:
            return
        record: Record = {"name": "scheduler.step_instructions", "value": value, "unit": "instructions"}
        yield record | {"rows": rows, "groups": groups, "states": has_states}


def prefix_hits() -> Iterator[Record]:
    for (prefixes, length, num_blocks), groups in itertools.product(SHARED_PREFIXES, GROUPS):
        share = share_prefixes(prefixes, length, num_blocks * groups, groups)
        record: Record = {"name": "scheduler.prefix_hits", "value": round(share, 3), "unit": "share of tokens"}
        yield record | {"prefixes": prefixes, "length": length, "groups": groups}


def hybrid_hits() -> Iterator[Record]:
    """The prefix hits of a hybrid beside those of its size with attention alone, which have the same memory.

    The sizes are of Qwen 3.5 0.8B in bfloat16: 24 layers, of which a quarter have attention, 2 KV heads of 256, and a
    state of 19 MB in the others.
    """
    attention_bytes, state_bytes = 2 * 2 * 256 * 2, 18 * 4 * (16 * 128 * 128 + 3 * 3 * 16 * 128)
    interval = state_bytes // (6 * attention_bytes) // BLOCK_SIZE
    for gigabytes in (1, 2, 4):
        memory = gigabytes << 30
        states = fitting_states(memory, state_bytes, CONVERSATIONS_AT_ONCE)
        blocks = (memory - states * state_bytes) // (6 * attention_bytes * BLOCK_SIZE)
        hybrid = conversation_hits(blocks, num_states=states, state_checkpoint_blocks=interval)
        attention = conversation_hits(memory // (24 * attention_bytes * BLOCK_SIZE))
        record: Record = {
            "name": "scheduler.hybrid_hits",
            "value": round(hybrid / attention, 3),
            "unit": "of attention",
        }
        yield record | {"gigabytes": gigabytes, "hybrid": round(hybrid, 3), "attention": round(attention, 3)}


FIGURES: dict[str, Callable[[], Iterator[Record]]] = {
    "scheduler.step_us": step,
    "scheduler.step_waiting_us": step_waiting,
    "scheduler.step_preempting_us": step_preempting,
    "scheduler.policy_switch_us": policy_switch,
    "scheduler.step_instructions": step_instructions,
    "scheduler.add_us": add,
    "scheduler.admit_cached_us": admit_cached,
    "scheduler.prefix_hits": prefix_hits,
    "scheduler.hybrid_hits": hybrid_hits,
}


def decode(rows: int, waiting: int = 0, policy: str = "fcfs", num_groups: int = 1, num_states: int = 0) -> list[float]:
    """Seconds of each step with `rows` requests decoding, each with 1,024 tokens of context, the prefix cache on.

    `waiting` more requests wait in the queue. With `num_states` the model keeps a state for each sequence.
    """
    num_blocks = num_groups * rows * (CONTEXT + MAX_TOKENS + BLOCK_SIZE) // BLOCK_SIZE
    # Add blocks for the watermark, which stays free.
    room = {"num_blocks": num_blocks + num_blocks // 20, "num_states": num_states}
    scheduler = make(rows, **room, policy=policy, kv_groups=kv_groups(num_groups))
    for request in range(rows):
        prompt = array("i", [request + 1, *range(CONTEXT - 1)]).tobytes()
        scheduler.add(0, request, prompt, seed=request, max_tokens=MAX_TOKENS)
    while True:  # prefill, until every row decodes
        _, plan = timed_step(scheduler)
        if plan.num_rows == rows == plan.num_tokens:
            break
    # Longer than the running requests, so that no policy preempts these for them.
    add_queue(scheduler, rows, waiting, least_outputs=MAX_TOKENS)
    return [seconds for seconds, _ in (timed_step(scheduler) for _ in range(STEPS))]


def preempt(slots: int, waiting: int, policy: str) -> tuple[list[float], float]:
    """Seconds of each step that preempts, and the rows of such steps.

    The KV cache is smaller than the slots need, and admission asks for room for current tokens only, which is not the
    engine's default: with that, almost nothing is preempted for lack of blocks. A request that ends makes room for the
    next in the queue, which is kept at its length. Preempted requests are recomputed, so these steps prefill, too.
    """
    scheduler = make(slots, slots * 128 // BLOCK_SIZE, policy=policy, watermark=0.0, expected_growth=0.0)
    seconds: list[float] = []
    rows: list[int] = []
    added = steps = 0
    while len(seconds) < STEPS:
        missing = slots + waiting - scheduler.stats()["num_requests"]
        add_queue(scheduler, added, missing, least_outputs=64)
        added += missing
        steps += 1
        before = scheduler.stats()["num_preemptions"]
        took, plan = timed_step(scheduler)
        if steps > STEPS and scheduler.stats()["num_preemptions"] > before:
            seconds.append(took)
            rows.append(plan.num_rows)
    return seconds, statistics.mean(rows)


def switch_policies(waiting: int) -> dict[str, list[float]]:
    """Seconds of the call that switches to each policy from another, with `waiting` requests in the queue."""
    scheduler = make(256, num_blocks=1 << 14)
    add_queue(scheduler, 0, waiting, least_outputs=64)
    seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for _ in range(SWITCHES):
        for policy in (*POLICIES[1:], POLICIES[0]):
            begin = time.perf_counter()
            scheduler.reconfigure(policy=policy)
            seconds[policy].append(time.perf_counter() - begin)
    return seconds


def add_prompts(tokens: int) -> list[float]:
    """Seconds to add one prompt of `tokens` tokens, hashing included."""
    scheduler = make(256, num_blocks=1 << 20)
    seconds = []
    for request in range(200):
        prompt = array("i", [request, *range(tokens - 1)]).tobytes()
        begin = time.perf_counter()
        scheduler.add(0, request, prompt, seed=0, max_tokens=16)
        seconds.append(time.perf_counter() - begin)
    return seconds


def admit_cached_prompts(tokens: int) -> list[float]:
    """Seconds of the `schedule` that admits a prompt with all blocks cached, except for the last token's."""
    scheduler = make(256, num_blocks=1 << 16)
    prompt = array("i", range(tokens)).tobytes()
    seconds = []
    for request in range(201):
        scheduler.add(0, request, prompt, seed=0, max_tokens=1)
        begin = time.perf_counter()
        plan = scheduler.schedule(0.0)
        seconds.append(time.perf_counter() - begin)
        assert plan is not None
        # The first request fills the cache.
        assert plan.num_tokens == (tokens if request == 0 else tokens - (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE)
        scheduler.commit(plan.step, *answer(plan))
    return seconds[1:]


def share_prefixes(number: int, length: int, num_blocks: int, num_groups: int) -> float:
    """The share of prompt tokens found in the prefix cache, for prompts that begin with one of some prefixes.

    Few prefixes are frequent and many rare (by Zipf's law), each prompt has 16 to 400 tokens of its own, and 100 tokens
    are generated. The cache has the same bytes for any number of groups.
    """
    scheduler = make(8, num_blocks, kv_groups=kv_groups(num_groups), max_num_batched_tokens=192)
    random = Random(0)
    prefixes = [array("i", (random.randrange(1000) for _ in range(length))) for _ in range(number)]
    weights = [1 / (rank + 1) for rank in range(number)]
    added = ended = 0
    while ended < 400:
        while added < 400 and added - ended < 12:
            own = array("i", (random.randrange(1000) for _ in range(random.randrange(16, 400))))
            (prefix,) = random.choices(prefixes, weights)
            scheduler.add(0, added, (prefix + own).tobytes(), seed=added, max_tokens=100)
            added += 1
        timed_step(scheduler)
        ended = added - scheduler.stats()["num_requests"]
    stats = scheduler.stats()
    return stats["prefix_hits"] / stats["prefix_queries"]


def conversation_hits(num_blocks: int, **states: int) -> float:
    """The share of prompt tokens found in the prefix cache by conversations that come back in any order."""
    settings = {"max_num_batched_tokens": 512, **states}
    scheduler = make(CONVERSATIONS_AT_ONCE, num_blocks, **settings)
    random = Random(0)
    histories = [list(range(SYSTEM)) for _ in range(CONVERSATIONS)]
    for _ in range(TURNS * CONVERSATIONS // CONVERSATIONS_AT_ONCE):
        for conversation in random.sample(range(CONVERSATIONS), CONVERSATIONS_AT_ONCE):
            history = histories[conversation]
            history += (random.randrange(1000) for _ in range(QUESTION))
            scheduler.add(0, conversation, array("i", history).tobytes(), seed=conversation, max_tokens=ANSWER)
            history += [SAMPLED] * ANSWER
        while scheduler.stats()["num_requests"]:
            timed_step(scheduler)
    stats = scheduler.stats()
    return stats["prefix_hits"] / stats["prefix_queries"]


def kv_groups(number: int) -> list[dict[str, int | None]]:
    """A group with full attention, and others with a window."""
    return [{"window": None}, *[{"window": WINDOW}] * (number - 1)]


def instructions(rows: int, num_groups: int, has_states: bool) -> int | None:
    """Instructions of a step in which `rows` requests decode, as callgrind counts them in Rust; None without it.

    It is the mean of 64 steps, in which each row completes four blocks.
    """
    program = rust_example.build("decode")
    if program is None:
        return None
    counts = []
    for steps in (0, 64):
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program]
        command += [str(rows), str(steps), str(num_groups), str(int(has_states))]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no figures of instructions: valgrind does not run ({error})", file=sys.stderr)
            return None
        collected = re.search(r"Collected : (\d+)", result.stderr)
        assert collected is not None, result.stderr
        counts.append(int(collected[1]))
    return round((counts[1] - counts[0]) / 64)


def make(rows: int, num_blocks: int, **settings: Any) -> Scheduler:
    """A scheduler with the engine's default settings, except for those given."""
    return Scheduler(
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=rows,
        max_model_len=16384,
        vocab_size=1 << 20,
        enable_prefix_caching=True,
        **(live_settings(SchedulerConfig(max_num_batched_tokens=8192)) | settings),
    )


def add_queue(scheduler: Scheduler, first: int, number: int, least_outputs: int) -> None:
    """Add requests, after all others, of all priorities but the highest, and of all tenants and lengths."""
    tokens = array("i", range(CONTEXT)).tobytes()
    for request in range(first, first + number):
        scheduler.add(
            0,
            request,
            array("i", [request]).tobytes() + tokens[: 4 * (16 + request % 100)],
            seed=request,
            max_tokens=least_outputs + request * 7 % 256,
            arrival=1.0 + request,
            priority=1 + request % 3,
            tenant=f"tenant {request % 16}",
        )


def timed_step(scheduler: Scheduler) -> tuple[float, Plan]:
    """Plan, commit and take the deltas; the time of a worker in between does not count."""
    begin = time.perf_counter()
    plan = scheduler.schedule(0.0)
    assert plan is not None
    memoryview(plan)
    planned = time.perf_counter()
    starts, tokens = answer(plan)
    answered = time.perf_counter()
    scheduler.commit(plan.step, starts, tokens)
    scheduler.take_deltas(0)
    return time.perf_counter() - answered + planned - begin, plan


def answer(plan: Plan) -> tuple[bytes, bytes]:
    """Starts and tokens, as from a worker: each position samples the same token."""
    starts = section(plan, "sampled_starts")
    return starts.tobytes(), array("i", [SAMPLED]).tobytes() * int(starts[-1])
