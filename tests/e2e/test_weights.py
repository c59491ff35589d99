"""Other versions of the weights under running requests: each mode, ranks and replicas, failed loads, kills."""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyllm import AsyncEngine, RequestOutput, SamplingParams, SchedulingParams
from pyllm.errors import EngineDeadError, RequestError
from tests import in_process
from tests.e2e.server import Server, until
from tests.e2e.titles import CORE, WORKER, find_one
from tests.safetensors_arrays import load_file
from tests.tiers import full
from tests.tiny_model import write_tiny_model

PROMPT = list(range(40))
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=450, ignore_eos=True)
UNI = {"distributed_executor_backend": "uni"}
SIZES: dict[str, Any] = {"heads": 4, "kv_heads": 2}


class Versions:
    """Two checkpoints of one model, and one of another; the tokens of both versions in a fresh engine."""

    def __init__(self, folder: Path) -> None:
        self.first = write_tiny_model(folder / "first", seed=1, **SIZES)
        self.second = write_tiny_model(folder / "second", seed=2, **SIZES)
        self.other_model = write_tiny_model(folder / "other", layers=3, **SIZES)
        self.damaged = write_tiny_model(folder / "damaged", seed=3, **SIZES)
        weights = Path(self.damaged) / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-4:] = b"\xff\xff\xff\x7f"  # a NaN
        weights.write_bytes(content)
        self.tokens = {path: fresh(path) for path in (self.first, self.second)}


def fresh(model: str) -> list[int]:
    with in_process.engine(model, dtype="float32") as engine:
        return in_process.tokens(in_process.generate(engine, [PROMPT], LONG))[0]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return Versions(tmp_path_factory.mktemp("versions"))


@asynccontextmanager
async def running(model: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    settings = {"dtype": "float32", "kv_cache_memory_bytes": "16MiB", "warm_spares": False, **options}
    async with AsyncEngine(model, **settings) as engine:
        yield engine


def tokens(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


async def begun(engine: AsyncEngine, num_tokens: int = 5) -> "asyncio.Task[RequestOutput]":
    """A long request that has some tokens already."""
    has_tokens = asyncio.Event()

    async def read() -> RequestOutput:
        last: RequestOutput | None = None
        async for output in engine.generate({"prompt_token_ids": PROMPT}, LONG):
            last = output
            if len(tokens(output)) >= num_tokens:
                has_tokens.set()
        assert last is not None
        return last

    task = asyncio.create_task(read())
    await has_tokens.wait()
    return task


async def check(engine: AsyncEngine, expected: list[int]) -> None:
    answer = await engine.complete({"prompt_token_ids": PROMPT}, SHORT)
    assert tokens(answer) == expected[:8]


@pytest.mark.parametrize(
    "options",
    [
        UNI,
        {"data_parallel_size": 2},
        full({}),
        full({"tensor_parallel_size": 2, "num_threads": 1}),
        full({"pipeline_parallel_size": 2, "num_threads": 1}),
    ],
)
async def test_running_requests_end_on_the_weights_before_or_go_on_or_end(
    versions: Versions, options: dict[str, Any]
) -> None:
    first, second = versions.tokens[versions.first], versions.tokens[versions.second]
    async with running(versions.first, **options) as engine:
        await check(engine, first)
        task = await begun(engine)
        version = await engine.update_weights(versions.second)
        assert len(version) == 64
        assert tokens(await task) == first
        await check(engine, second)

        before = await engine.update_weights(versions.first)
        task = await begun(engine)
        assert await engine.update_weights(versions.second, "continue") == version
        mixed = tokens(await task)
        shared = next(index for index, (one, other) in enumerate(zip(mixed, first, strict=True)) if one != other)
        assert 5 <= shared < len(first)
        await check(engine, second)

        assert await engine.update_weights(versions.first) == before
        task = await begun(engine)
        await engine.update_weights(versions.second, "abort")
        ended = (await task).outputs[0]
        assert ended.finish_reason == "abort"
        assert list(ended.token_ids) == first[: len(ended.token_ids)]
        await check(engine, second)


async def test_a_version_that_cannot_be_leaves_the_one_before(versions: Versions) -> None:
    first = versions.tokens[versions.first]
    async with running(versions.first, **UNI) as engine:
        task = await begun(engine)
        for path, text in (
            (versions.other_model, "is of another model: layers is of 3, and the engine's is of 2"),
            (versions.damaged, "NaN"),
            (versions.first + "-absent", "there is no model at"),
        ):
            with pytest.raises(RequestError, match=text):
                await engine.update_weights(path)
        with pytest.raises(RequestError, match="mode must be one of finish, continue, abort"):
            await engine.update_weights(versions.second, "later")
        await check(engine, first)
        assert tokens(await task) == first


async def test_requests_wait_through_a_pause_and_an_update_within_it(versions: Versions) -> None:
    first, second = versions.tokens[versions.first], versions.tokens[versions.second]
    async with running(versions.first, **UNI) as engine:
        task = await begun(engine)
        await engine.pause_generation(mode="keep")
        assert await engine.is_paused()
        waiting = asyncio.create_task(engine.complete({"prompt_token_ids": PROMPT}, SHORT))
        with pytest.raises(RequestError, match="paused, and cannot end"):
            await engine.update_weights(versions.second)
        await engine.update_weights(versions.second, "continue")
        stats = await engine.stats()
        assert (stats["num_running"], stats["num_requests"]) == (0, 2)
        await engine.resume_generation()
        assert tokens(await waiting) == second[:8]
        assert tokens(await task)[:5] == first[:5]
        await engine.pause_generation(mode="abort")
        await engine.resume_generation()
        await check(engine, second)


async def test_versions_share_no_blocks(versions: Versions) -> None:
    async with running(versions.first, **UNI) as engine:
        await check(engine, versions.tokens[versions.first])
        await engine.update_weights(versions.second)
        answer = await engine.complete({"prompt_token_ids": PROMPT}, SHORT)
        assert answer.num_cached_tokens == 0
        answer = await engine.complete({"prompt_token_ids": PROMPT}, SHORT)
        assert (answer.num_cached_tokens or 0) > 0


async def test_arrays_of_a_program_replace_tensors_and_outlive_workers_and_cores(versions: Versions) -> None:
    second = versions.tokens[versions.second]
    arrays = load_file(Path(versions.second) / "model.safetensors")
    async with running(versions.first) as engine:
        task = await begun(engine)
        version = await engine.update_weights(arrays)
        assert tokens(await task) == versions.tokens[versions.first]
        await check(engine, second)
        for title in (WORKER, CORE):
            kill(engine, title)
            await check(engine, second)
        half = {name: array for name, array in arrays.items() if "layers.1" in name}
        assert await engine.update_weights({name: 2 * array for name, array in half.items()}) != version
        await engine.update_weights(half)
        await check(engine, second)
        for wrong, text in (({"x": arrays["model.norm.weight"]}, "no tensor 'x'"), ({}, "there is no array")):
            with pytest.raises(RequestError, match=text):
                await engine.update_weights(wrong)
        await engine.update_weights(versions.first)
        await check(engine, versions.tokens[versions.first])


@pytest.mark.parametrize(
    "options",
    [UNI, UNI | {"kv_offloading_size": "8MiB"}, full({"tensor_parallel_size": 2, "num_threads": 1})],
)
async def test_an_engine_sleeps_and_goes_on(versions: Versions, options: dict[str, Any]) -> None:
    first, second = versions.tokens[versions.first], versions.tokens[versions.second]
    async with running(versions.first, **options) as engine:
        for level in (1, 2):
            task = await begun(engine)
            await engine.sleep(level, "keep")
            assert await engine.is_sleeping()
            waiting = asyncio.create_task(engine.complete({"prompt_token_ids": PROMPT}, SHORT))
            await engine.wake_up()
            assert not await engine.is_sleeping()
            assert tokens(await task) == first
            assert tokens(await waiting) == first[:8]
        await engine.sleep(2)
        await engine.update_weights(versions.second)
        assert await engine.is_sleeping()
        await engine.wake_up(["kv_cache"])
        await check(engine, second)
        assert set(map(type, await engine.collective_rpc("statistics"))) == {dict}
        await engine.collective_rpc("reload_weights")
        await check(engine, second)


async def test_a_host_pool_sleeps_and_outlives_a_worker(versions: Versions) -> None:
    # Two requests at once do not fit, so that one is swapped out.
    options: dict[str, Any] = {"kv_cache_memory_bytes": None, "num_gpu_blocks_override": 40, "max_model_len": 512}
    second = versions.tokens[versions.second]
    async with running(versions.first, kv_offloading_size="8MiB", **options) as engine:
        tasks = [await begun(engine) for _ in range(2)]
        await engine.sleep(1, "keep")
        await engine.wake_up()
        kill(engine, WORKER)
        for task in tasks:
            assert tokens(await task) == versions.tokens[versions.first]
        assert (await engine.stats())["num_swapped"] > 0
        await engine.update_weights(versions.second)
        await check(engine, second)


def test_an_engine_in_this_process_takes_other_weights_pauses_and_sleeps(versions: Versions) -> None:
    first, second = versions.tokens[versions.first], versions.tokens[versions.second]
    with in_process.engine(versions.first, dtype="float32") as engine:

        def run() -> list[int]:
            return in_process.tokens(in_process.generate(engine, [PROMPT], SHORT))[0]

        engine.add_request("running", {"prompt_token_ids": PROMPT}, SHORT)
        engine.step()
        version = engine.update_weights(versions.second)  # It steps until the request has ended.
        (ended,) = engine.step()
        assert (ended.finished, tokens(ended)) == (True, first[:8])
        assert run() == second[:8]
        assert engine.update_weights(load_file(Path(versions.first) / "model.safetensors")) != version
        assert run() == first[:8]

        engine.pause_generation(mode="keep")
        assert engine.is_paused()
        engine.add_request("waiting", {"prompt_token_ids": PROMPT}, SHORT)
        assert engine.step() == []
        engine.resume_generation()
        while engine.has_unfinished_requests():
            engine.step()

        engine.sleep(2)
        assert engine.is_sleeping()
        engine.wake_up()
        assert run() == first[:8]
        assert len(engine.collective_rpc("statistics")) == 1


def kill(engine: AsyncEngine, title: str) -> None:
    """Kill the one process of the engine with this title; other tests of this process may have such ones, too."""
    find_one(engine._processes.pids(), title).send_signal(signal.SIGKILL)


@pytest.mark.parametrize("title", [WORKER, CORE])
async def test_the_new_weights_outlive_workers_and_cores(versions: Versions, title: str) -> None:
    second = versions.tokens[versions.second]
    async with running(versions.first) as engine:
        await engine.update_weights(versions.second)
        task = await begun(engine)
        kill(engine, title)
        assert tokens(await task) == second
        await check(engine, second)


async def paused_for_update(engine: AsyncEngine, update: "asyncio.Task[str]") -> None:
    """Wait until core 0 lets requests end for an update, or the update is done."""
    first = SchedulingParams(data_parallel_rank=0)
    for number in itertools.count():
        name = f"probe-{number}"
        probe = asyncio.create_task(
            engine.complete({"prompt_token_ids": PROMPT}, SHORT, request_id=name, scheduling=first)
        )
        while not probe.done() and not update.done():
            await asyncio.sleep(0)
            with contextlib.suppress(RequestError):  # It has not begun, or has ended.
                if (await engine.explain(name))[0].reason == "paused":
                    return
        if update.done():
            return


@pytest.mark.parametrize("title", [WORKER, CORE, full("pyllm::core-1")])
async def test_a_kill_in_the_middle_leaves_one_version(versions: Versions, title: str) -> None:
    first, second = versions.tokens[versions.first], versions.tokens[versions.second]
    async with running(versions.first, data_parallel_size=2) as engine:
        tasks = [await begun(engine) for _ in range(4)]
        update = asyncio.create_task(engine.update_weights(versions.second))
        await paused_for_update(engine, update)
        kill(engine, title)
        # A process that dies while weights are loaded ends the update; later, the next one has the new weights.
        (outcome,) = await asyncio.gather(update, return_exceptions=True)
        assert isinstance(outcome, str | RequestError | EngineDeadError), outcome
        expected = second if isinstance(outcome, str) else first
        for task in tasks:
            assert tokens(await task) == first
        for core in (0, 1):
            for _ in range(2):
                await check(engine, expected)
            assert core in {each.index for each in engine._client.cores}


@pytest.fixture(scope="module")
def server(versions: Versions) -> Iterator[Server]:
    with Server(versions.first, "--dtype", "float32", "--admin-on-loopback", *("--api-server-count", "2")) as started:
        yield started


def text(server: Server) -> str:
    answer = server.complete(PROMPT, max_tokens=8, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_a_server_changes_its_weights_in_all_api_processes(server: Server, versions: Versions) -> None:
    before = text(server)
    with server.http() as http:
        assert http.get("/admin/weights").json() == {"version": ""}
        refused = http.post("/admin/weights", json={"path": versions.other_model})
        assert refused.status_code == 400
        assert "is of another model" in refused.json()["error"]["message"]
        changed = http.post("/admin/weights", json={"path": versions.second, "mode": "continue"})
        assert changed.status_code == 200, changed.text
        version = changed.json()["version"]
    until(lambda: _version(server) == version, "the version in each API process")
    after = {text(server) for _ in range(4)}
    assert len(after) == 1
    assert before not in after
    core = server.titled(CORE)
    core.send_signal(signal.SIGKILL)
    core.wait(60)
    assert {text(server) for _ in range(4)} == after


def _version(server: Server) -> str:
    with server.http() as http:
        return str(http.get("/admin/weights").json()["version"])


def test_a_server_is_paused_over_http(server: Server) -> None:
    with server.http() as http:
        assert http.post("/pause?mode=keep").json() == {"status": "paused"}
        assert http.get("/is_paused").json() == {"is_paused": True}
        until(lambda: http.get("/health/ready").json()["status"] == "paused", "the pause in health")
        assert http.post("/resume").json() == {"status": "resumed"}
        assert (http.post("/sleep?level=2&mode=wait").status_code, http.get("/is_sleeping").json()) == (
            200,
            {"is_sleeping": True},
        )
        assert http.post("/wake_up?tags=weights&tags=kv_cache").status_code == 200
        assert http.get("/is_sleeping").json() == {"is_sleeping": False}
        until(lambda: http.get("/health/ready").status_code == 200, "the end of the pause in health")
    assert text(server)
