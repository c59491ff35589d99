"""A catalogue of copies of the embedded model: seconds to the first token of a model that is not loaded.

From the disk, from the page cache, and beside streams of another model; then random switches among five models with
room for two, by several clients at once.
"""

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from benchmarks.record import Record
from benchmarks.servers.startup import Server
from pyllm.checkpoint.reader import embedded_model

MODELS = "abcde"
RUNS = 5
STREAMS = 4
SWITCHES, CLIENTS = 200, 4
PAUSE = 4.0  # seconds between two switches, in which the next core is started ahead
KV_CACHE = ("--kv-cache-memory-bytes", "256MiB")


def run() -> Iterator[Record]:
    with tempfile.TemporaryDirectory() as folder:
        files = copies(Path(folder))
        with Server(*map(str, files[:3]), *KV_CACHE, "--max-loaded-models", "2") as server:
            yield from asyncio.run(first_tokens(server.address, files))
        with Server(*map(str, files), *KV_CACHE, "--max-loaded-models", "2") as server:
            yield asyncio.run(random_switches(server.address))


def copies(folder: Path) -> list[Path]:
    """The embedded model under five names."""
    files = [folder / f"{name}.gguf" for name in MODELS]
    for file in files:
        shutil.copyfile(embedded_model(), file)
    return files


async def first_tokens(address: str, files: list[Path], names: str = "abc") -> list[Record]:
    """Seconds to the first token of three models, for two of which a server has room.

    `names` are asked for in turn, each of them when it is not loaded.
    """
    async with httpx2.AsyncClient(base_url=address, timeout=600.0) as http:
        for name in "abc":
            await _first_token(http, name)
        plain: list[float] = []
        dropped: list[float] = []
        loaded: list[float] = []
        for index in range(2 * RUNS):
            name = names[index % len(names)]
            await asyncio.sleep(PAUSE)
            if index % 2:
                _drop(files[MODELS.index(name)])
            (dropped if index % 2 else plain).append(await _first_token(http, name))
        alone = await _gap(http, asyncio.sleep(PAUSE))
        beside = await _gap(http, _switches(http, loaded))
    return [
        {"name": "catalogue.first_token_s", "value": _median(plain), "unit": "s", "worst": round(max(plain), 2)},
        {"name": "catalogue.from_disk_s", "value": _median(dropped), "unit": "s", "worst": round(max(dropped), 2)},
        {"name": "catalogue.under_load_s", "value": _median(loaded), "unit": "s", "streams": STREAMS},
        {"name": "catalogue.gap_ms", "value": beside, "unit": "ms", "without": alone, "streams": STREAMS},
    ]


async def _switches(http: httpx2.AsyncClient, seconds: list[float]) -> None:
    for index in range(RUNS):
        await asyncio.sleep(PAUSE)
        seconds.append(await _first_token(http, "bc"[index % 2]))


async def _gap(http: httpx2.AsyncClient, work: Any) -> float:
    """The longest time in milliseconds between two events of streams of the first model, while `work` runs."""
    gaps: list[float] = []
    working = asyncio.ensure_future(work)

    async def stream() -> None:
        while not working.done():
            body = {"model": "a", "prompt": "Count: one, two,", "max_tokens": 400, "ignore_eos": True, "stream": True}
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                last = None
                async for line in answer.aiter_lines():
                    now = time.perf_counter()
                    if line and last is not None:
                        gaps.append(now - last)
                    last = now

    await asyncio.gather(*(stream() for _ in range(STREAMS)))
    await working
    return round(1000 * max(gaps), 1)


async def random_switches(address: str) -> Record:
    """Seconds to the first token of requests, each for any of five models."""
    drawn, errors = random.Random(0), 0
    seconds: list[float] = []
    names = iter([drawn.choice(MODELS) for _ in range(SWITCHES)])
    async with httpx2.AsyncClient(base_url=address, timeout=600.0) as http:

        async def ask() -> None:
            nonlocal errors
            for name in names:
                try:
                    seconds.append(await _first_token(http, name))
                except httpx2.HTTPError:
                    errors += 1

        await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    return {
        "name": "catalogue.random_s",
        "value": _median(seconds),
        "unit": "s",
        "worst": round(max(seconds), 2),
        "requests": SWITCHES,
        "errors": errors,
    }


async def _first_token(http: httpx2.AsyncClient, name: str) -> float:
    begin = time.perf_counter()
    body = {"model": name, "prompt": "The capital of France is", "max_tokens": 1}
    answer = await http.post("/v1/completions", json=body)
    answer.raise_for_status()
    return time.perf_counter() - begin


def _drop(file: Path) -> None:
    """Drop a model's file, and all packed weights, from the page cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pyllm"
    for path in (file, *cache.glob("*.packed"), *cache.glob("*.weights")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _median(seconds: list[float]) -> float:
    return round(median(seconds), 2)
