"""The application on Ray Serve: cores come and go by load and by updates, and no request fails or gets other tokens."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import ray

from tests.ray.cluster_nodes import ClusterNodes, cluster_of
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")
NUM_TOKENS = 60
NUM_PROMPTS = 6
SETTINGS = {"max_model_len": 512, "dtype": "float32", "device": "cpu", "kv_cache_memory_bytes": "8MiB"}


@pytest.fixture
def cluster() -> Iterator[ClusterNodes]:
    with cluster_of(2, 2, 2) as nodes:
        yield nodes


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_tiny_model(tmp_path / "tiny", heads=4, kv_heads=2)


@pytest.fixture
def served(cluster: ClusterNodes) -> Iterator[Any]:
    """Ray Serve, on a port of its own."""
    from ray import serve

    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"port": 8321})
    yield serve
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
async def http(served: Any) -> AsyncIterator[httpx.AsyncClient]:
    del served
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url="http://127.0.0.1:8321", timeout=120.0, limits=limits) as client:
        yield client


def cores(serve: Any) -> int:
    """Those that run now."""
    status = serve.status().applications["pyllm"].deployments.get("Cores")
    return 0 if status is None else status.replica_states.get("RUNNING", 0)


def deploy(serve: Any, model: str, **options: Any) -> None:
    from pyllm.ray.application import app

    serve.run(app({"model": model, **SETTINGS, **options}), name="pyllm", route_prefix="/")


async def streamed(http: httpx.AsyncClient, number: int) -> str:
    """The text of one of the prompts' answers, greedy or seeded."""
    body = {
        "prompt": [256, *range(number, number + 100)],
        "max_tokens": NUM_TOKENS,
        "temperature": number % 2,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }
    text = ""
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += msgspec.json.decode(line[6:])["choices"][0]["text"]
    assert line in {"", "data: [DONE]"}
    return text


class Load:
    """Streams without a pause, each compared with the same one on an idle server."""

    def __init__(self, http: httpx.AsyncClient, expected: list[str]) -> None:
        self._http = http
        self._expected = expected
        self.counts: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def running(self, width: int) -> AsyncIterator[None]:
        stop = asyncio.Event()
        tasks = [asyncio.ensure_future(self._stream(first, stop)) for first in range(width)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)

    async def _stream(self, number: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            number = (number + 1) % NUM_PROMPTS
            try:
                text = await streamed(self._http, number)
            except Exception as error:  # noqa: BLE001 - all of them are counted
                self.counts[repr(error)] += 1
            else:
                self.counts["same" if text == self._expected[number] else "other"] += 1


async def expected(http: httpx.AsyncClient) -> list[str]:
    return [await streamed(http, number) for number in range(NUM_PROMPTS)]


async def until_cores(serve: Any, number: int) -> None:
    while await asyncio.to_thread(cores, serve) != number:
        await asyncio.sleep(0.2)


async def test_cores_come_with_load_and_go_without_it(served: Any, http: httpx.AsyncClient, model: str) -> None:
    scaling = {
        "min_replicas": 1,
        "max_replicas": 3,
        "upscale_delay_s": 1,
        "downscale_delay_s": 3,
        "look_back_period_s": 11,
        "policy": {
            "policy_function": "pyllm.ray.scaling_policy:CoreScaling",
            "policy_kwargs": {"queued_tokens": 200},
        },
    }
    await asyncio.to_thread(deploy, served, model, max_num_seqs=2, cores={"autoscaling_config": scaling})
    load = Load(http, await expected(http))
    async with load.running(24):
        await until_cores(served, 3)
        before = load.counts.total()
        while load.counts.total() < before + 24:
            await asyncio.sleep(0.2)
    async with load.running(1):
        await until_cores(served, 1)
    assert load.counts.keys() == {"same"}


async def test_an_update_of_the_cores_loses_no_token(served: Any, http: httpx.AsyncClient, model: str) -> None:
    await asyncio.to_thread(deploy, served, model)
    load = Load(http, await expected(http))
    async with load.running(4):
        before = load.counts.total()
        await asyncio.to_thread(deploy, served, model, max_num_seqs=16)
        while load.counts.total() < before + 8:
            await asyncio.sleep(0.2)
    assert load.counts.keys() == {"same"}


async def test_streams_of_a_core_whose_replica_is_killed_go_on(
    served: Any, http: httpx.AsyncClient, model: str
) -> None:
    await asyncio.to_thread(deploy, served, model, cores={"autoscaling_config": {"min_replicas": 2, "max_replicas": 2}})
    load = Load(http, await expected(http))
    async with load.running(4):
        replica = next(process for process in psutil.process_iter() if is_core_replica(process))
        before = load.counts.total()
        while load.counts.total() < before + 4:
            await asyncio.sleep(0.1)
        replica.kill()
        before = load.counts.total()
        while load.counts.total() < before + 12:
            await asyncio.sleep(0.1)
        await until_cores(served, 2)
    assert load.counts.keys() == {"same"}


def is_core_replica(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "".join(process.cmdline()).startswith("ray::ServeReplica:pyllm:Cores")
    return False
