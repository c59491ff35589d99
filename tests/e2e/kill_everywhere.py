"""`python -m tests.e2e.kill_everywhere`: a worker dies at every step of nine mixed streams, the core at every event.

And both at random instants, and each rank of three. Prints a JSON object for each; fails where a stream is not its
uncrashed twin, or where too few kills counted: those with a token emitted and one owed.
"""

import asyncio
import functools
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tests.e2e.killing_core import Trigger, killing_server
from tests.e2e.kills import Run, Tally, kill_at_events, kill_at_instants, kill_at_plan, kill_titled, requests_and_twins
from tests.e2e.server import Server
from tests.e2e.survival_streams import Streams

NUM_TOKENS = 40
NUM_EVENTS = 9 * NUM_TOKENS  # about as many as all streams have together
# Steps are small, so that the long prompt takes several of them, and every run computes it anew.
OPTIONS = {"max_num_batched_tokens": 64, "enable_prefix_caching": False, "max_restarts": 1000}
FLAGS = ["--max-num-batched-tokens", "64", "--no-enable-prefix-caching", "--max-restarts", "1000"]
# Of one core or server: each death within a minute makes the wait before the next restart longer.
DEATHS = 5
# Kills before the first token and after the last one are made, too, and do not count.
LEAST_COUNTED = 0.5


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
    for title in ("pyllm::worker-0-0", "pyllm::core-0"):
        yield f"{title} at events", at_events(title, range(1, NUM_EVENTS, 7))
        yield f"{title} at random", at_instants(title, num_runs=8)


async def at_steps(ranks: int = 1, rank: int = 0, first: int = 1, stride: int = 1, most_runs: int = 10_000) -> Tally:
    """Kill a rank at each `stride`th step of an uncrashed run from `first` to the last, and again in each run."""
    tally, plan, last = Tally(), first, first
    while plan <= last and tally.runs < most_runs:
        trigger = Trigger()
        async with killing_server(trigger, tensor_parallel_size=ranks, **OPTIONS) as address:
            requests, twins = await asyncio.to_thread(requests_and_twins, address, NUM_TOKENS)
            before = trigger.num_plans
            again = await asyncio.to_thread(Streams(address, requests).join)
            last = trigger.num_plans - before
            uncrashed = Tally()
            uncrashed.add(requests, twins, Run(again, []))
            assert uncrashed.is_flawless, uncrashed.record("the streams differ though nobody died")
            while plan <= last and tally.runs < most_runs and len(trigger.kills) < DEATHS:
                run = await asyncio.to_thread(kill_at_plan, address, trigger, requests, plan, 2, rank)
                tally.add(requests, twins, run)
                plan += stride
    return tally


def at_events(title: str, events: Sequence[int]) -> Tally:
    """Kill a process of a real server when the clients have had so many events; a run for each number."""
    return _live(title, [functools.partial(kill_at_events, events=[number]) for number in events])


def at_instants(title: str, num_runs: int) -> Tally:
    """Kill a process of a real server at a random instant of each run, and at another one once all has recovered."""
    choose = random.Random(num_runs)
    instants = [[choose.random(), choose.random() / 2] for _ in range(num_runs)]
    return _live(title, [functools.partial(kill_at_instants, seconds=seconds) for seconds in instants])


def _live(title: str, runs: Sequence[Callable[..., Run]]) -> Tally:
    tally, left = Tally(), deque(runs)
    while left:
        with Server(*FLAGS) as server:
            requests, twins = requests_and_twins(server.address, NUM_TOKENS)
            before = tally.kills
            while left and tally.kills < before + DEATHS:
                run = left.popleft()
                kill = functools.partial(kill_titled, server.process.pid, title)
                tally.add(requests, twins, run(server.address, requests, kill=kill))
            server.tree = server.processes()
        assert server.process.returncode == 0, server.log
        assert server.orphans() == []
    return tally


if __name__ == "__main__":
    main()
