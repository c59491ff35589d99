"""The cost of choosing a core for a request, beside round robin. Through the Python entry point."""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.engine.scheduler import make, timed_step
from benchmarks.engine.simulated_replicas import BLOCK_SIZE, ByPrefix, Chooser, RoundRobin, SimulatedRequest
from benchmarks.record import Record, percentiles

CORES = 4
PROMPTS = 50
PLACED = 1000
REQUESTS_PER_REPORT = 10
VOCABULARY = 150_000


def run() -> Iterator[Record]:
    for tokens in (1000, 8000):
        prompts = [make_prompt(number, tokens) for number in range(PROMPTS)]
        for prefix_hash in ("blake3", "sha256_cbor"):
            chooser = ByPrefix(CORES, prefix_hash)
            load = store(chooser, prompts, prefix_hash)
            new = (make_prompt(PROMPTS + number, tokens) for number in range(PLACED))
            for cached, seconds in (
                ("on every core", time_each(chooser, (prompts[number % PROMPTS] for number in range(PLACED)), load)),
                ("nowhere", time_each(chooser, new, load, first_id=PLACED)),
            ):
                case = {"cores": CORES, "placement": "prefix", "prefix_hash": prefix_hash, "cached": cached}
                yield percentiles("placement.place_us", seconds, tokens=tokens, **case)
        seconds = time_each(RoundRobin(CORES), (prompts[number % PROMPTS] for number in range(PLACED)), b"")
        yield percentiles("placement.place_us", seconds, tokens=tokens, cores=CORES, placement="round-robin")


def make_prompt(number: int, tokens: int) -> bytes:
    return np.random.default_rng(number).integers(VOCABULARY, size=tokens, dtype=np.int32).tobytes()


def store(chooser: Chooser, prompts: Sequence[bytes], prefix_hash: str) -> bytes:
    """Make every core report every block of the prompts, so that look-ups are as long as possible; return the load."""
    # Equal caches report equal changes.
    num_blocks = 2 * sum(map(len, prompts)) // (4 * BLOCK_SIZE)
    scheduler = make(len(prompts), num_blocks=num_blocks, prefix_hash=prefix_hash)
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
            return load
        number = following


def time_each(chooser: Chooser, prompts: Iterator[bytes], load: bytes, first_id: int = 0) -> list[float]:
    """Seconds of each choice. Each request ends before the next one is placed, and each core reports now and then."""
    seconds = []
    for request_id, prompt in enumerate(prompts, first_id):
        request = SimulatedRequest(prompt, max_tokens=16)
        begin = time.perf_counter()
        chooser.place(request_id, request)
        seconds.append(time.perf_counter() - begin)
        chooser.ended(request_id)
        if request_id % REQUESTS_PER_REPORT == 0:
            for core in range(CORES):
                chooser.update_core(core, request_id, b"", load)
    return seconds
