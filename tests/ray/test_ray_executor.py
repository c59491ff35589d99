"""Ranks on the nodes of a Ray cluster: the same tokens as processes of one machine, also when a node dies."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyllm import AsyncEngine, SamplingParams
from pyllm.core.executors.ray_cluster import RankResources, connect, reserve
from pyllm.errors import ConfigError, StartError
from tests import waiting
from tests.ray.cluster_nodes import ClusterNodes, cluster_of
from tests.tiny_model import write_tiny_model

until = partial(waiting.until, pause=0.1)
NUM_TOKENS = 300
PROMPTS = [[256, 1, 2, 3], [256, 9, 8], [256, 70, 71, 72, 73, 74]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("ray") / "model", heads=4, kv_heads=2)


@pytest.fixture
def cluster() -> Iterator[ClusterNodes]:
    with cluster_of(1, 1) as nodes:
        yield nodes


def engine(model: str, folder: Path, **options: Any) -> AsyncEngine:
    options |= {"max_model_len": 512, "device": "cpu", "dtype": "float32", "kv_cache_memory_bytes": 8 << 20}
    options = {"tensor_parallel_size": 2} | options
    return AsyncEngine(model, flight_recorder_dir=str(folder), **options)


def on_ray(model: str, folder: Path, cluster: ClusterNodes, **options: Any) -> AsyncEngine:
    return engine(model, folder, distributed_executor_backend="ray", ray_address=cluster.address, **options)


def params(number: int) -> SamplingParams:
    """Greedy, or seeded."""
    temperature = 1.0 if number else 0.0
    return SamplingParams(temperature=temperature, seed=number, max_tokens=NUM_TOKENS, ignore_eos=True)


async def tokens(asked: AsyncEngine) -> list[list[int]]:
    outputs = await asyncio.gather(
        *[asked.complete({"prompt_token_ids": prompt}, params(i)) for i, prompt in enumerate(PROMPTS)]
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture
async def expected(model: str, tmp_path: Path) -> AsyncIterator[list[list[int]]]:
    """Those of two processes of this machine."""
    async with engine(model, tmp_path) as local:
        yield await tokens(local)


def ranks() -> dict[str, psutil.Process]:
    """The workers that are on nodes of Ray, by their titles."""
    found = {}
    for process in psutil.process_iter():
        try:
            title, parent = process.cmdline(), process.parent()
            if title and title[0].startswith("pyllm::worker-") and parent and "RankActor" in parent.cmdline()[0]:
                found[title[0].split()[0]] = process
        except (psutil.NoSuchProcess, IndexError):
            continue
    return found


async def test_two_ranks_on_two_nodes_give_the_same_tokens_when_a_node_dies(
    model: str, tmp_path: Path, cluster: ClusterNodes, expected: list[list[int]]
) -> None:
    async with on_ray(model, tmp_path, cluster) as asked:
        assert await tokens(asked) == expected
        before = ranks()
        nodes = {process.parent().ppid() for process in before.values()}  # type: ignore[union-attr]
        assert len(nodes) == 2
        streams = asyncio.ensure_future(tokens(asked))
        while (await asked.stats())["num_running"] < len(PROMPTS):
            await asyncio.sleep(0)
        cluster.kill_node_of(before["pyllm::worker-0-1"])
        cluster.add(1)
        assert await streams == expected
        stats = await asked.stats()
        assert stats["num_recoveries"] == 1
        assert stats["num_suspects"] == 0  # No request is to blame for a node.
    await until(lambda: not ranks())


async def test_two_stages_on_two_nodes_give_the_same_tokens_when_a_node_dies(
    model: str, tmp_path: Path, cluster: ClusterNodes, expected: list[list[int]]
) -> None:
    stages = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    async with on_ray(model, tmp_path, cluster, **stages) as asked:
        assert await tokens(asked) == expected
        before = ranks()
        assert len({process.parent().ppid() for process in before.values()}) == 2  # type: ignore[union-attr]
        streams = asyncio.ensure_future(tokens(asked))
        while (await asked.stats())["num_running"] < len(PROMPTS):
            await asyncio.sleep(0)
        cluster.kill_node_of(before["pyllm::worker-0-0"])
        cluster.add(1)
        assert await streams == expected
        assert (await asked.stats())["num_recoveries"] == 1


async def test_a_killed_rank_is_replaced(
    model: str, tmp_path: Path, cluster: ClusterNodes, expected: list[list[int]]
) -> None:
    async with on_ray(model, tmp_path, cluster) as asked:
        ranks()["pyllm::worker-0-0"].kill()
        assert await tokens(asked) == expected
        os.kill(ranks()["pyllm::worker-0-1"].ppid(), 9)  # its actor
        assert await tokens(asked) == expected


async def test_a_start_says_what_the_cluster_lacks(cluster: ClusterNodes) -> None:
    ray = await asyncio.to_thread(connect, cluster.address)
    try:
        with pytest.raises(StartError, match=r"2 rank\(s\) need 3 CPU each, and 3 node\(s\) have 2 of 2 CPU free"):
            await reserve(ray, RankResources(2, 2, cpus=3, gpus=0), patience=1.0)
        reserved = await reserve(ray, RankResources(2, 2, cpus=1, gpus=0), patience=60.0)
        assert reserved.bundles == [0, 1]  # No node has two CPUs.
        await asyncio.to_thread(cluster.add, 2)
        reserved = await reserve(ray, RankResources(2, 2, cpus=1, gpus=0), patience=60.0)
        assert reserved.bundles == [0, 0]
        with pytest.raises(ConfigError, match=r"ray://host:10001 is not the address of a cluster"):
            connect("ray://host:10001")
    finally:
        ray.shutdown()


async def test_without_a_cluster_a_start_says_how_to_have_one() -> None:
    with pytest.raises(
        StartError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: .*start one with `ray start --head`"
    ):
        await asyncio.to_thread(connect, "127.0.0.1:1")
