"""Adapters of a core: who waits for one, what is loaded and freed, and what stays after deaths."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyllm.checkpoint.hub import Hub
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.lora_settings import LoraModule
from pyllm.config.option_reading import engine_config
from pyllm.core.adapters import Adapters, AdapterSource, read_adapters
from pyllm.errors import ConfigError, RequestError
from pyllm.wire.messages import Adapter, AdapterList, Rejected
from pyllm.wire.supervision_messages import Kept
from tests.checkpoint.adapters.lora_folder import write_lora
from tests.core.adapting_executor import AdaptingExecutor
from tests.core.raw_engine import Engine
from tests.hub_server import HubServer
from tests.tiny_model import write_tiny_model

MODULES = {"model.layers.0.self_attn.q_proj": (96, 48)}


class World:
    """A core with adapters, whose folders are made on demand."""

    def __init__(
        self, folder: Path, executor: AdaptingExecutor | None = None, hub: Hub | None = None, **options: Any
    ) -> None:
        self.folder = folder
        self.executor = executor or AdaptingExecutor()
        self.kept: list[Kept] = []
        options = {"enable_lora": True, "max_loras": 2, "lora_folder": str(folder)} | options
        spec = read_checkpoint(write_tiny_model(folder / "model")).spec
        self.source = AdapterSource(spec, hub or Hub(), engine_config(options).lora)
        self.options: dict[str, Any] = options | {"adapter_source": self.source, "keep": self.kept.append}
        self.engine = Engine(executor=self.executor, **self.options)

    @property
    def adapters(self) -> Adapters:
        return self.engine.core._adapters

    def path(self, name: str, **changes: Any) -> str:
        """The folder of an adapter, each with weights of its own."""
        return str(write_lora(self.folder / name, MODULES, seed=sum(name.encode()), **changes))

    async def load(self, name: str, **options: Any) -> Adapter:
        return await self.adapters.load(name, self.path(name), **options)

    async def run(self) -> dict[int, list[int]]:
        """Step until nothing is left, loads included; the tokens of each request."""
        while await self.engine.core.step() or self.adapters._loading is not None:
            await asyncio.sleep(0)
        return {request: tokens for request, (tokens, _) in self.engine.outputs().items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_rows_are_computed_with_the_adapter_that_the_request_names(world: World) -> None:
    await world.load("a")
    key = (await world.load("b")).key
    world.engine.submit(1, [10], max_tokens=3)
    world.engine.submit(2, [10], max_tokens=3, adapter="a")
    world.engine.submit(3, [10], max_tokens=3, adapter=key)
    assert await world.run() == {1: [11, 12, 13], 2: [12, 14, 16], 3: [13, 16, 19]}


async def test_an_unknown_adapter_is_refused_with_the_known_ones(world: World) -> None:
    await world.load("a")
    world.engine.submit(1, [10], adapter="b")
    (rejected,) = world.engine.messages(Rejected)
    assert (rejected.code, rejected.parameter) == ("invalid", "adapter")
    assert rejected.message == "adapter 'b' is not loaded; loaded: a"


async def test_without_adapters_the_setting_is_named() -> None:
    engine = Engine()
    engine.submit(1, [10], adapter="a")
    (rejected,) = engine.messages(Rejected)
    assert "enable_lora" in rejected.message
    assert not engine.messages(AdapterList)


async def test_clients_and_the_next_core_learn_of_each_change(world: World) -> None:
    a = await world.load("a")
    world.engine.call("unload_adapter", "a")
    lists = [message.adapters for message in world.engine.messages(AdapterList)]
    assert lists == [(), (a,), ()]
    assert [kept.adapters for kept in world.kept] == [
        (a,),
        (msgspec.structs.replace(a, is_listed=False),),
    ]


async def test_what_runs_ends_on_the_adapter_that_was_unloaded(world: World) -> None:
    await world.load("a")
    world.engine.submit(1, [10], max_tokens=3, adapter="a")
    await world.engine.core.step()
    world.adapters.unload("a")
    world.engine.submit(2, [10], adapter="a")
    assert await world.run() == {1: [12, 14, 16]}
    assert "not loaded" in world.engine.messages(Rejected)[0].message


async def test_another_one_takes_the_name_in_place(world: World) -> None:
    first = await world.load("a")
    world.engine.submit(1, [10], max_tokens=3, adapter="a")
    await world.engine.core.step()
    other = world.path("b")
    with pytest.raises(RequestError, match="unload it first"):
        await world.adapters.load("a", other)
    second = await world.adapters.load("a", other, in_place=True)
    assert (first.name, second.name) == ("a", "a")
    assert first.key != second.key
    world.engine.submit(2, [10], max_tokens=3, adapter="a")
    assert await world.run() == {1: [12, 14, 16], 2: [13, 16, 19]}


async def test_the_same_adapter_may_be_loaded_twice(world: World) -> None:
    assert await world.load("a") == await world.load("a")


async def test_a_folder_resolves_names(world: World) -> None:
    path = world.path("style")
    adapter = await world.adapters.load("style")
    assert (adapter.name, adapter.path) == ("style", path)
    for name in ("missing", "..", "../style", ""):
        with pytest.raises(RequestError):
            await world.adapters.load(name)


async def test_names_of_the_hub_resolve_for_chosen_owners_alone(tmp_path: Path) -> None:
    with HubServer() as server:
        hub = Hub(endpoint=server.endpoint, cache_dir=str(tmp_path / "cache"), offline=False)
        world = World(tmp_path, hub=hub, lora_repositories=("me/*",))
        for name in ("me/style", "other/style"):
            server.add(name, write_lora(tmp_path / "hub" / name, MODULES))
        adapter = await world.adapters.load("me/style")
        assert adapter.name == "me/style"
        assert server.downloaded()
        with pytest.raises(RequestError, match="there is no adapter 'other/style'"):
            await world.adapters.load("other/style")


async def test_a_rank_above_the_limit_names_the_setting(world: World) -> None:
    with pytest.raises(RequestError, match="rank 17, more than max_lora_rank 16"):
        await world.adapters.load("a", world.path("a", rank=17))
    assert world.adapters.listed == ()


async def test_a_refusal_of_the_ranks_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, AdaptingExecutor(refused=frozenset({1})))
    with pytest.raises(RequestError, match="has a NaN"):
        await world.load("a")
    assert world.adapters.listed == ()
    assert world.executor.calls[-1] == ("unload_adapter", 1)
    await world.load("b")
    world.engine.submit(1, [10], max_tokens=2, adapter="b")
    assert await world.run() == {1: [13, 16]}


async def test_the_host_keeps_as_many_as_are_configured(tmp_path: Path) -> None:
    world = World(tmp_path, max_loras=1, max_cpu_loras=2)
    for name in "abcd":
        await world.load(name)
    assert world.executor.on_host == {3, 4}
    for request, name in enumerate("abcda"):
        world.engine.submit(request, [10], max_tokens=2, adapter=name)
    assert await world.run() == {0: [12, 14], 1: [13, 16], 2: [14, 18], 3: [15, 20], 4: [12, 14]}
    assert world.executor.most_on_host == 2


async def test_live_requests_get_their_adapters_again_after_a_death(tmp_path: Path) -> None:
    world = World(tmp_path, AdaptingExecutor(dies_at=(2,)))
    await world.load("a")
    await world.load("b")
    world.engine.submit(1, [10], max_tokens=5, adapter="a")
    assert await world.run() == {1: [12, 14, 16, 18, 20]}
    assert world.executor.num_restarts == 1
    assert world.executor.on_host == {1}
    world.engine.submit(2, [10], max_tokens=2, adapter="b")
    assert (await world.run())[2] == [13, 16]


async def test_an_adapter_that_cannot_be_loaded_again_fails_its_requests_alone(tmp_path: Path) -> None:
    world = World(tmp_path, AdaptingExecutor(dies_at=(2,)))
    await world.load("a")
    world.engine.submit(1, [10], max_tokens=5, adapter="a")
    world.engine.submit(2, [10], max_tokens=5)
    await world.engine.core.step()
    world.executor.refused = frozenset({1})
    assert (await world.run())[2] == [11, 12, 13, 14, 15]
    (rejected,) = world.engine.messages(Rejected)
    assert (rejected.request, rejected.code) == (1, "error")
    assert "could not be loaded again" in rejected.message


async def test_the_next_core_serves_what_this_one_did(world: World) -> None:
    await world.load("a")
    await world.load("b")
    world.adapters.unload("a")
    kept = world.kept[-1].adapters
    found = await read_adapters(world.executor, world.source, [], kept)
    following = Engine(executor=world.executor, adapters=found, **world.options)
    adapters = following.core._adapters
    assert [adapter.name for adapter in adapters.listed or ()] == ["b"]
    assert kept is not None
    assert adapters.find(kept[0].key)[0] == kept[0].key


async def test_changed_files_are_not_served_by_the_next_core(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.load("a")
    write_lora(world.folder / "a", MODULES, seed=9)
    assert await read_adapters(world.executor, world.source, [], world.kept[-1].adapters) == []
    assert "have changed" in caplog.text


async def test_a_module_at_the_start_that_cannot_be_used_ends_the_start(world: World) -> None:
    with pytest.raises(ConfigError, match="lora_modules: x: there is no adapter"):
        await read_adapters(world.executor, world.source, [LoraModule("x", str(world.folder / "x"))], None)
