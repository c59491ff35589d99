"""`python -m benchmarks.servers.memory_flat [MINUTES]`: checks that memory stays constant under load, for 30 minutes.

Resident memory of each process of a server is sampled; the first part of the time, in which caches fill, does not
count. Prints a JSON object; the exit code is 1 if a process has grown or shrunk by more than 2 %.
"""

import asyncio
import json
import sys
import threading
import time

import psutil

from benchmarks.servers.load import measure, mixed_requests
from benchmarks.servers.startup import Server

MINUTES = 30.0
WARM_UP = 0.2  # of the time
INTERVAL = 2.0  # seconds between two samples
STREAMS = 32
ROUND = 128  # requests between two looks at the clock
ROUNDS = 4  # that are different, so that caches of prompts, which may grow to their bounds, have all of them soon
LEAST, MOST = 16, 240  # tokens of a prompt, and of its answer
BOUND = 1.02


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES
    with Server() as server:
        sampler = Sampler(server)
        begun, rounds, tokens = time.monotonic(), 0, 0.0
        with sampler:
            while time.monotonic() < begun + minutes * 60:
                requests = mixed_requests(ROUND, LEAST, MOST, seed=rounds % ROUNDS)
                figures = asyncio.run(measure(server.address, server.model(), requests, STREAMS))
                tokens += figures["output_tokens_per_s"] * figures["seconds"]
                rounds += 1
        spans = sampler.spans(begun + minutes * 60 * WARM_UP)
    flat = all(span["ratio"] <= BOUND for span in spans)
    print(
        json.dumps(
            {
                "name": "memory_flat",
                "minutes": minutes,
                "requests": rounds * ROUND,
                "tokens": round(tokens),
                "flat": flat,
                "processes": spans,
            }
        )
    )
    sys.exit(0 if flat and spans else 1)


class Sampler:
    """Samples every process of a server while it is entered."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._samples: dict[psutil.Process, list[tuple[float, int]]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def spans(self, since: float) -> list[dict[str, float | str]]:
        """The least and the most memory of each process since then, in MB, and their ratio."""
        spans = []
        for process, samples in self._samples.items():
            sizes = [size for when, size in samples if when >= since]
            title = process.cmdline()[:1]
            spans.append(
                {
                    "process": title[0] if title else str(process.pid),
                    "least_mb": round(min(sizes) / 1e6, 2),
                    "most_mb": round(max(sizes) / 1e6, 2),
                    "ratio": round(max(sizes) / min(sizes), 4),
                }
            )
        return spans

    def _sample(self) -> None:
        while not self._stopping.wait(INTERVAL):
            for process in self._server.processes():
                self._samples.setdefault(process, []).append((time.monotonic(), process.memory_info().rss))


if __name__ == "__main__":
    main()
