"""`python -m tests.e2e.kill_everywhere`: a worker dies at every step of nine mixed streams.

And each rank of three at every ninth step; worker, core and fork server at every seventh event and at random instants.
Prints a JSON object for each; fails where a stream is not its uncrashed twin, or where too few kills counted: those
with a token emitted and one owed.
"""

import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.e2e.killing_core import Trigger, killing_server
from tests.e2e.kills import (
    Run,
    Tally,
    kill_at_events,
    kill_at_instants,
    kill_at_plan,
    kill_titled,
    twins_of,
    with_stop_string,
)
from tests.e2e.server import Server
from tests.e2e.survival_streams import Request, mixed_requests
from tests.e2e.titles import CORE, WORKER

NUM_TOKENS = 40
NUM_EVENTS = 9 * NUM_TOKENS  # about as many as all streams have together
# Steps are small, so that the long prompt takes several of them, and every run computes it anew.
OPTIONS = {"max_num_batched_tokens": 64, "enable_prefix_caching": False, "max_restarts": 1000}
# Of one core or server: each death within a minute makes the wait before the next restart longer.
DEATHS = 5
# Kills before the first token and after the last one are made, too, and do not count.
LEAST_COUNTED = 0.5

KINDS = frozenset(request.name for request in mixed_requests(NUM_TOKENS))

# One run against a server, with whatever kills there are in it.
Kill = Callable[[Server, Sequence[Request]], Run]


def main() -> None:
    begun = time.monotonic()
    failed = False
    for name, tally in _parts():
        print(json.dumps({**tally.record(name), "seconds": round(time.monotonic() - begun)}), flush=True)
        failed |= not tally.is_flawless or tally.counted < max(1, LEAST_COUNTED * tally.kills)
    sys.exit(int(failed))


def _parts() -> Iterator[tuple[str, Tally]]:
    yield "worker at every step", asyncio.run(at_steps())
    for rank in range(3):
        yield f"rank {rank} of 3", asyncio.run(at_steps(ranks=3, rank=rank, stride=9))
    for title in (WORKER, CORE):
        yield f"{title} at events", live(at_event(title, number) for number in range(1, NUM_EVENTS, 7))
        yield f"{title} at random", live(at_instants(title, seed) for seed in range(8))


async def at_steps(
    ranks: int = 1,
    rank: int = 0,
    first: int = 1,
    stride: int = 1,
    most_runs: int = 10_000,
    num_kills: int = 2,
    num_tokens: int = NUM_TOKENS,
    kinds: Container[str] = KINDS,
    **options: Any,
) -> Tally:
    """Kill a rank at each `stride`th step of an uncrashed run from `first` to the last.

    And again in each run, until there were `num_kills`. `kinds` are those of the requests, `options` the engine's.
    """
    tally, plan, last = Tally(), first, first
    while plan <= last and tally.runs < most_runs:
        trigger = Trigger()
        async with killing_server(trigger, tensor_parallel_size=ranks, **OPTIONS, **options) as address:
            mixed = await asyncio.to_thread(with_stop_string, address, num_tokens)
            requests = [request for request in mixed if request.name in kinds]
            before = trigger.num_plans
            twins = await asyncio.to_thread(twins_of, address, requests)
            last = trigger.num_plans - before
            while plan <= last and tally.runs < most_runs and len(trigger.kills) < DEATHS:
                run = await asyncio.to_thread(kill_at_plan, address, trigger, requests, plan, num_kills, rank)
                tally.add(requests, twins, run)
                plan += stride
    return tally


def live(runs: Iterable[Kill], num_tokens: int = NUM_TOKENS) -> Tally:
    """Kill processes of a real server, in one run after another."""
    tally, left = Tally(), deque(runs)
    while left:
        with Server(*_flags(OPTIONS)) as server:
            requests = with_stop_string(server.address, num_tokens)
            twins = twins_of(server.address, requests)
            before = tally.kills
            while left and tally.kills < before + DEATHS:
                tally.add(requests, twins, left.popleft()(server, requests))
            server.tree = server.processes()
        assert server.process.returncode == 0, server.log
        assert server.orphans() == []
    return tally


def at_event(title: str, number: int) -> Kill:
    """Kill a process when the clients have had so many events."""

    def run(server: Server, requests: Sequence[Request]) -> Run:
        return kill_at_events(server.address, requests, [number], lambda: kill_titled(server.process.pid, title))

    return run


def at_instants(title: str, seed: int) -> Kill:
    """Kill a process at a random instant, and again at another one once all streams have gone on."""
    choose = random.Random(seed)
    seconds = choose.random(), choose.random() / 2

    def run(server: Server, requests: Sequence[Request]) -> Run:
        return kill_at_instants(server.address, requests, seconds, lambda: kill_titled(server.process.pid, title))

    return run


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Options as `pyllm serve` has them."""
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        flags += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return flags


if __name__ == "__main__":
    main()
