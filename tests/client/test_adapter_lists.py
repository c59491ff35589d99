"""LoRA adapters of a client's cores: their names, requests that name one, and cores that lack one."""

import asyncio

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.client.reports import AdapterReport
from pyllm.errors import RequestError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.messages import Adapter, AdapterList, Call, Submit
from tests.client import fake_core, test_several_cores
from tests.client.adapter_core import AdapterCore, adapter
from tests.client.fake_core import EPOCH, Cores, FakeCore
from tests.client.mortal_core import Reader

GREEDY = SamplingParams(temperature=0.0)
FIRST, SECOND = adapter("first"), adapter("second")
WITH_FIRST = SchedulingParams(adapter="first")


async def connected(*cores: FakeCore | Cores) -> EngineClient:
    return await (fake_core.connected(cores[0]) if len(cores) == 1 else test_several_cores.connected(*cores))


def loaded_by(core: AdapterCore) -> list[str]:
    return [call.args[0] for call in core.sent(Call) if call.method == "load_adapter"]


def sent_adapters(core: FakeCore) -> list[str]:
    return [submit.adapter for submit in core.sent(Submit)]


async def test_a_request_names_an_adapter_and_its_key_is_sent() -> None:
    core = AdapterCore(adapters=[FIRST, SECOND])
    client = await connected(core)
    assert client.served_adapters == (FIRST, SECOND)
    assert client.find_adapter("second") == SECOND
    assert client.find_adapter("third") is None
    for name in ("first", SECOND.key, ""):
        [delta async for delta in client.generate([5], GREEDY, SchedulingParams(adapter=name))]
    assert sent_adapters(core) == [FIRST.key, SECOND.key, ""]
    with pytest.raises(RequestError, match="adapter 'third' is not loaded; loaded: first, second") as refused:
        [delta async for delta in client.generate([5], GREEDY, SchedulingParams(adapter="third"))]
    assert refused.value.parameter == "adapter"
    await client.embed([5], WITH_FIRST)
    assert sent_adapters(core)[-1] == FIRST.key
    client.close()


async def test_a_core_without_adapters_says_so() -> None:
    core = FakeCore()
    client = await connected(core)
    assert client.served_adapters is None
    assert client.find_adapter("first") is None
    client.submit([5], GREEDY, Reader(1), WITH_FIRST)
    assert sent_adapters(core) == ["first"]
    client.close()


async def test_an_adapter_is_loaded_into_all_cores_and_unloaded_from_all() -> None:
    cores = [AdapterCore(epoch=EPOCH + index) for index in range(2)]
    client = await connected(*cores)
    for core in cores:
        core.files["/a"] = "d7"
    assert await client.load_adapter("first", "/a") == Adapter("first", "/a", "d7", 8)
    assert client.find_adapter("first") == Adapter("first", "/a", "d7", 8)
    assert await client.adapters() == [
        AdapterReport(
            name="first", path="/a", digest="d7", rank=8, is_listed=True, is_loaded=True, num_running=2, num_waiting=4
        )
    ]
    assert [each.num_running for each in await client.adapters(core=1)] == [1]
    with pytest.raises(RequestError, match="is loaded from /a: unload it first"):
        await client.load_adapter("first", "/b")
    assert client.find_adapter("first") is not None
    for core in cores:
        core.files["/b"] = "d8"
    assert (await client.load_adapter("first", "/b", in_place=True)).digest == "d8"
    await client.unload_adapter("first")
    assert client.served_adapters == ()
    with pytest.raises(RequestError, match="adapter 'first' is not loaded"):
        await client.unload_adapter("first")
    client.close()


async def test_what_one_core_refuses_no_core_keeps() -> None:
    cores = [AdapterCore(epoch=EPOCH + index) for index in range(2)]
    client = await connected(*cores)
    cores[0].files["/a"] = "d7"
    with pytest.raises(RequestError, match="there is no adapter /a"):
        await client.load_adapter("first", "/a")
    assert [core.adapters for core in cores] == [{}, {}]
    cores[1].files["/a"] = "d8"
    with pytest.raises(RequestError, match="the cores read different files of the adapter 'first'"):
        await client.load_adapter("first", "/a")
    assert [core.adapters for core in cores] == [{}, {}]
    client.close()


async def test_only_what_all_cores_have_has_a_name() -> None:
    cores = [AdapterCore(epoch=EPOCH, adapters=[FIRST, SECOND]), AdapterCore(epoch=EPOCH + 1, adapters=[FIRST])]
    client = await connected(*cores)
    while client.find_adapter("second") is not None:
        await asyncio.sleep(0)
    assert loaded_by(cores[1]) == ["second"]
    assert client.served_adapters == (FIRST,)
    client.close()


async def test_while_an_adapter_is_replaced_requests_go_where_the_first_one_is() -> None:
    cores = [AdapterCore(epoch=EPOCH + index, adapters=[FIRST]) for index in range(2)]
    client = await connected(*cores)
    cores[0].files["/b"] = cores[1].files["/b"] = "d2"
    cores[1].pauses_loads = True
    replacing = asyncio.ensure_future(client.load_adapter("first", "/b", in_place=True))
    while not cores[1].loads:
        await asyncio.sleep(0)
    for _ in range(2):
        client.submit([5], GREEDY, Reader(1), WITH_FIRST)
    assert [sent_adapters(core) for core in cores] == [["first@d2", "first@d2"], []]
    cores[1].finish_load()
    assert (await replacing).key == "first@d2"
    client.submit([5], GREEDY, Reader(1), WITH_FIRST)
    assert sent_adapters(cores[1]) == ["first@d2"]
    client.close()


async def test_a_core_that_joins_gets_the_adapters_of_the_others() -> None:
    first = AdapterCore(adapters=[FIRST, SECOND])
    second, joining = FakeCore(epoch=EPOCH + 1), AdapterCore(epoch=EPOCH + 2)
    joining.files = dict(first.files)
    joining.pauses_loads = True
    client = EngineClient(
        first.connect,
        second.connect,
        placement="round-robin",
        heartbeats=False,
        transport=lambda address: joining.connect,
    )
    await client.start()
    assert len(client.served_adapters or ()) == 2  # The second core serves none at all.
    await client.add_core("ipc:///joining")
    while not joining.loads:
        await asyncio.sleep(0)
    for _ in range(4):
        client.submit([5], GREEDY, Reader(1), WITH_FIRST)
    assert [len(sent_adapters(core)) for core in (first, second, joining)] == [4, 0, 0]
    while joining.loads:
        joining.finish_load()
        await asyncio.sleep(0)
    assert set(joining.adapters) == {"first", "second"}
    for _ in range(4):
        client.submit([5], GREEDY, Reader(1), WITH_FIRST)
    assert [len(sent_adapters(core)) for core in (first, second, joining)] == [6, 0, 2]
    client.close()


async def test_requests_wait_until_the_next_core_has_their_adapter_or_cannot_have_it() -> None:
    core, follower = AdapterCore(adapters=[FIRST, SECOND]), AdapterCore(epoch=99)
    follower.files = {FIRST.path: FIRST.digest, SECOND.path: "changed"}
    follower.pauses_loads = True
    core.paused = follower.paused = True
    client = await connected(Cores(core, follower))
    readers = [Reader(1) for _ in range(3)]
    for reader, name in zip(readers, ("first", "second", ""), strict=True):
        client.submit([5], GREEDY, reader, SchedulingParams(adapter=name))
    core.on_disconnect()
    assert sent_adapters(follower) == [""]
    assert client.find_adapter("second") == SECOND  # as far as the client knows
    for _ in range(2):
        while not follower.loads:
            await asyncio.sleep(0)
        follower.finish_load()
    while client.find_adapter("second") is not None:
        await asyncio.sleep(0)
    assert sent_adapters(follower) == ["", FIRST.key, SECOND.key]
    assert [len(reader.errors) for reader in readers] == [0, 1, 0]
    assert client.served_adapters == (FIRST,)
    assert "second" not in follower.adapters
    client.close()


async def test_the_next_core_of_a_supervisor_has_the_adapters_already() -> None:
    core, follower = AdapterCore(adapters=[FIRST]), AdapterCore(epoch=99, adapters=[FIRST])
    core.paused = follower.paused = True
    client = await connected(Cores(core, follower))
    client.submit([5], GREEDY, Reader(1), WITH_FIRST)
    core.on_disconnect()
    assert sent_adapters(follower) == [FIRST.key]
    client.close()


async def test_the_list_of_another_epoch_is_dropped() -> None:
    core = AdapterCore(adapters=[FIRST])
    client = await connected(core)
    core.say(AdapterList(EPOCH + 1, ()))
    assert client.served_adapters == (FIRST,)
    client.close()


async def test_a_pinned_prefix_may_be_of_an_adapter() -> None:
    core = AdapterCore(adapters=[FIRST])
    core.replies["pin"] = 3
    client = await connected(core)
    assert await client.pin(1, [5, 6], adapter="first") == 3
    assert core.sent(Call)[-1].args[4] == "first"
    client.close()


def test_an_adapters_name_is_a_text_of_a_length() -> None:
    assert len(SchedulingParams(adapter="x" * 256 + "@" + "0" * 32).adapter) == 289
    with pytest.raises(RequestError, match="adapter must be at most 289 characters"):
        SchedulingParams(adapter="x" * 290)
    with pytest.raises(RequestError, match="adapter must be a text"):
        SchedulingParams(adapter=1)  # type: ignore[arg-type] # what a caller may give
    assert msgspec.structs.replace(WITH_FIRST, adapter="").adapter == ""
