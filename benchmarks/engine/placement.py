"""What it costs to choose a core for a request, beside round robin. Through the Python entry point."""

import time
from array import array
from collections.abc import Iterator

from benchmarks.engine.scheduler import make, timed_step
from benchmarks.engine.simulated_replicas import BLOCK_SIZE, ByPrefix, Chooser, RoundRobin, SimulatedRequest
from benchmarks.record import Record, percentiles

CORES = 4
PROMPTS = 50
PLACED = 1000


def run() -> Iterator[Record]:
    for tokens in (1000, 8000):
        choosers: dict[str, Chooser] = {"prefix": ByPrefix(CORES), "round-robin": RoundRobin(CORES)}
        for placement, chooser in choosers.items():
            seconds = place_cached(chooser, tokens)
            yield percentiles("placement.place_us", seconds, tokens=tokens, cores=CORES, placement=placement)


def place_cached(chooser: Chooser, tokens: int) -> list[float]:
    """Seconds of each choice for prompts of which every core has every block: the walk is as long as it can be."""
    prompts = [array("i", [number, *range(tokens - 1)]).tobytes() for number in range(PROMPTS)]
    # Equal caches tell equal changes.
    scheduler = make(PROMPTS, num_blocks=2 * PROMPTS * tokens // BLOCK_SIZE)
    for number, prompt in enumerate(prompts):
        scheduler.add(0, number, prompt, seed=0, max_tokens=1)
    while scheduler.stats()["num_requests"]:
        timed_step(scheduler)
    number = -1
    while True:
        following, changes, load = scheduler.load_report(number)
        for core in range(CORES):
            chooser.update_core(core, -1, changes, load)
        if following == number:
            break
        number = following
    seconds = []
    for request_id in range(PLACED):
        request = SimulatedRequest(prompts[request_id % PROMPTS], max_tokens=16)
        begin = time.perf_counter()
        chooser.place(request_id, request)
        seconds.append(time.perf_counter() - begin)
        chooser.ended(request_id)
    return seconds
