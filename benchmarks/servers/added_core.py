"""Seconds from `add_core` until the new core has its share of the running requests, under a steady load.

Two headless cores with the embedded model; each stream that ends is followed by another one.
"""

import asyncio
import itertools
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.record import Record
from pyllm import EngineClient, SamplingParams

STREAMS = 32
TOKENS = (48, 96)  # of an answer, the least and the most
WARM_UP = 5.0  # seconds of load on the first core alone
SHARE = 0.45  # of two equal cores
LOOKS = 600  # in half a minute


def added_core() -> Iterator[Record]:
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"ipc://{folder}/core-{number}" for number in range(2)]
        cores = [
            subprocess.Popen(
                [sys.executable, "-m", "pyllm", "core", "--bind", address],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for address in addresses
        ]
        try:
            for core in cores:
                assert core.stdout is not None
                core.stdout.readline()  # It is ready.
            seconds, share = asyncio.run(_seconds(addresses))
        finally:
            for core in cores:
                core.terminate()
            for core in cores:
                core.wait()
    yield {"name": "replicas.added_core_s", "value": round(seconds, 2), "unit": "s", "streams": STREAMS, "share": share}


FIGURES = {"replicas.added_core_s": added_core}


async def _seconds(addresses: list[str]) -> tuple[float, float]:
    """Seconds until the second core has its share, and its mean share afterwards."""
    client = await EngineClient.connect(addresses[0], placement="prefix")
    numbers = itertools.count()
    load = [asyncio.create_task(_stream(client, numbers)) for _ in range(STREAMS)]
    await asyncio.sleep(WARM_UP)
    await client.add_core(addresses[1])
    added = time.monotonic()
    shares: list[tuple[float, float]] = []
    for _ in range(LOOKS):
        await asyncio.sleep(0.05)
        shares.append((time.monotonic() - added, _share(client)))
    for stream in load:
        stream.cancel()
    await asyncio.wait(load)
    client.close()
    seconds = next((when for when, share in shares if share >= SHARE), math.inf)
    later = [share for when, share in shares if when >= seconds]
    return seconds, round(sum(later) / max(1, len(later)), 3)


async def _stream(client: EngineClient, numbers: Iterator[int]) -> None:
    """Request one answer after another."""
    text = Path(__file__).with_name("..").joinpath("perplexity.txt").resolve().read_bytes()
    while True:
        generator = random.Random(next(numbers))
        start = generator.randrange(len(text) - 64)
        prompt = [byte + 10 for byte in text[start : start + 64]]
        params = SamplingParams(temperature=0.0, max_tokens=generator.randint(*TOKENS), ignore_eos=True)
        async for _ in client.generate(prompt, params):
            pass


def _share(client: EngineClient) -> float:
    counts = [core.num_requests for core in client.cores]
    return counts[1] / max(1, sum(counts))
