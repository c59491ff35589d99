"""The cores that a client is connected to: which may come, and how they leave."""

import asyncio

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.config.engine_settings import MAX_CORES
from pyllm.errors import ConfigError, EngineDeadError, RequestError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import FinishCode
from tests.client.fake_core import FakeCore, Row
from tests.client.mortal_core import Reader
from tests.client.test_several_cores import GREEDY, Clock, connected, fakes, prompts


async def test_a_core_of_another_model_is_refused() -> None:
    first, second = fakes(2)
    second.fingerprint = "another"
    client = await connected(first, second)
    for number in range(3):
        client.submit([number], GREEDY, Reader(1))
    assert (prompts(first), prompts(second)) == ([0, 1, 2], [])
    assert "would give other tokens" in client.cores[1].condition.reason


async def test_the_same_core_by_another_address_is_refused() -> None:
    cores = fakes(2)
    cores[1].epoch = cores[0].epoch
    client = await connected(*cores)
    assert client.cores[1].condition.reason == "the core at place-1 is core 0 already, by another address"
    client.close()


async def test_a_core_with_lower_limits_gets_what_it_has_room_for() -> None:
    first, second = fakes(2)
    second.model = msgspec.structs.replace(second.model, max_model_len=64, max_num_seqs=2)
    client = await connected(first, second)
    long, wide = SamplingParams(max_tokens=100), SamplingParams(max_tokens=8, n=3)
    readers = [Reader(params.n) for params in (long, wide, long, wide)]
    for number, (params, reader) in enumerate(zip((long, wide, long, wide), readers, strict=True)):
        client.submit([number], params, reader)
    client.submit([4], SamplingParams(max_tokens=8), Reader(1))
    assert (prompts(first), prompts(second)) == ([0, 1, 2, 3], [4])
    await client.remove_core(0, timeout=0.0)
    assert "no other core has room for its 101 tokens in 1 sequences" in str(readers[0].errors[0])
    assert "no other core has room for its 9 tokens in 3 sequences" in str(readers[1].errors[0])
    client.close()


async def test_cores_come_and_leave_under_way() -> None:
    first, second, third = fakes(3)
    places = {"second": second, "third": third}
    client = EngineClient(
        first.connect,
        placement="round-robin",
        heartbeats=False,
        clock=Clock(),
        transport=lambda address: places[address].connect,
    )
    await client.start()
    ids = [client.submit([number], GREEDY, Reader(1)) for number in range(2)]
    assert await client.add_core("second") == 1
    with pytest.raises(RequestError, match="there already"):
        await client.add_core("second")
    client.submit([2], GREEDY, Reader(1))
    assert (prompts(first), prompts(second)) == ([0, 1], [2])
    leaving = asyncio.create_task(client.remove_core(0, timeout=60.0))
    await asyncio.sleep(0)
    client.submit([3], GREEDY, Reader(1))
    assert prompts(second) == [2, 3]
    for request in ids:
        first.say_rows(Row(request, [5], finish=FinishCode.LENGTH))
    await leaving
    assert (first.closed, [report.index for report in client.cores]) == (True, [1])
    with pytest.raises(RequestError, match="core 1 is the only one"):
        await client.remove_core(1)
    with pytest.raises(RequestError, match="there is no core 0; there are: 1"):
        await client.remove_core(0)
    await client.add_core("third")
    await client.remove_core(1, timeout=0.0)  # What it has goes on elsewhere.
    assert prompts(third) == [2, 3]


async def test_a_core_that_does_not_answer_is_not_added() -> None:
    first, absent = fakes(2)
    absent.answers_hello = False
    client = EngineClient(first.connect, placement="prefix", heartbeats=False, transport=lambda address: absent.connect)
    await client.start()
    with pytest.raises(EngineDeadError, match="no core answered at absent within 0 s"):
        await client.add_core("absent", timeout=0.0)
    assert len(client.cores) == 1
    failover = EngineClient(FakeCore().connect, heartbeats=False)
    await failover.start()
    with pytest.raises(RequestError, match="connect it with placement"):
        await failover.add_core("absent")


async def test_there_are_no_more_than_the_most_that_a_server_may_have() -> None:
    cores = fakes(MAX_CORES)
    client = await connected(*cores)
    with pytest.raises(RequestError, match=f"there are {MAX_CORES} cores"):
        await client.add_core("ipc://another")
    with pytest.raises(ConfigError, match=f"{MAX_CORES + 1} addresses"):
        await connected(*cores, FakeCore())


async def test_two_calls_to_remove_a_core_are_as_one_and_a_cancelled_one_keeps_it() -> None:
    first, second = fakes(2)
    client = await connected(first, second)
    request = client.submit([1], GREEDY, Reader(1))
    cancelled = asyncio.create_task(client.remove_core(0, timeout=60.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert [report.is_leaving for report in client.cores] == [False, False]
    removals = [asyncio.create_task(client.remove_core(0, timeout=60.0)) for _ in range(2)]
    await asyncio.sleep(0)
    first.say_rows(Row(request, [5], finish=FinishCode.LENGTH))
    await asyncio.gather(*removals)
    assert [report.index for report in client.cores] == [1]


async def test_a_core_that_is_refused_is_not_another_one() -> None:
    first, second = fakes(2)
    second.fingerprint = "another"
    client = await connected(first, second)
    with pytest.raises(RequestError, match="core 0 is the only one"):
        await client.remove_core(0)
