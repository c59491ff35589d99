"""Two API processes with one shared state: a core that one adds is used by both, and gone when both have left it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from pyllm.client.client import EngineClient
from pyllm.config.process_config import SharedConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import EngineDeadError, RequestError
from pyllm.frontend.http.failure import UnknownCoreError
from pyllm.frontend.requests.server_cores import NOTHING_KNOWN, ServerCores, connect_cores
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import FinishCode, Submit
from tests.client.fake_core import EPOCH, FakeCore, Row
from tests.client.mortal_core import Reader
from tests.waiting import until

FIRST, SECOND, THIRD = "ipc://first", "ipc://second", "ipc://third"
GREEDY = SamplingParams(temperature=0.0, max_tokens=9)


class Api(NamedTuple):
    """What an API process has."""

    client: EngineClient
    cores: ServerCores

    def indices(self) -> list[int]:
        return [core.index for core in self.client.cores]


class Place:
    """The cores at some addresses, of which each API process has its own end."""

    def __init__(self) -> None:
        self.cores = {
            (member, address): FakeCore(epoch=EPOCH + index)
            for member in range(3)
            for index, address in enumerate((FIRST, SECOND, THIRD))
        }
        self.state = SharedState(SharedConfig(core_addresses=(FIRST, SECOND), max_num_seqs=16))

    async def api(self, member: int) -> Api:
        shared = LocalState(self.state, member)
        known = await shared.follow_cores(NOTHING_KNOWN, ())
        client = await connect_cores(known, "round-robin", lambda address: self.cores[member, address].connect, 60.0)
        return Api(client, ServerCores(client, shared, ServerConfig(), known))


@asynccontextmanager
async def apis(place: Place, count: int = 2) -> AsyncIterator[list[Api]]:
    made = [await place.api(member) for member in range(count)]
    following = [asyncio.create_task(api.cores.follow()) for api in made]
    yield made
    for task in following:
        task.cancel()
    for api in made:
        api.client.close()


async def test_a_core_that_one_adds_is_used_by_all_and_gone_when_all_have_left_it() -> None:
    place = Place()
    async with apis(place) as (one, two):
        assert await one.cores.add(THIRD) == 2
        await until(lambda: two.indices() == [0, 1, 2])
        for _ in range(3):
            two.client.submit([5], GREEDY, Reader(1))
        await two.cores.remove(0, 3600.0)
        await until(lambda: one.indices() == [1, 2])
        assert [(core.index, core.is_leaving) for core in one.cores.status()] == [(0, True), (1, False), (2, False)]
        assert two.indices() == [0, 1, 2], "it has a request there"
        (submit,) = place.cores[1, FIRST].sent(Submit)
        place.cores[1, FIRST].say_rows(Row(submit.request, [7], finish=FinishCode.LENGTH))
        await until(lambda: two.indices() == [1, 2])
        await until(lambda: [core.index for core in one.cores.status()] == [1, 2])
        late = await place.api(2)
        assert late.indices() == [1, 2]
        place.cores.update({(member, FIRST): FakeCore(epoch=EPOCH + 3) for member in range(2)})
        assert await two.cores.add(FIRST) == 3, "it may come again, and is another one then"
        late.client.close()


async def test_what_still_runs_goes_on_elsewhere_after_the_time_it_gets() -> None:
    place = Place()
    async with apis(place, 1) as (one,):
        for _ in range(2):
            one.client.submit([5], GREEDY, Reader(1))
        await one.cores.remove(0, 0.0)
        await until(lambda: one.indices() == [1])
        assert len(place.cores[0, SECOND].sent(Submit)) == 2


async def test_a_core_of_another_model_is_refused_and_nobody_has_it() -> None:
    place = Place()
    place.cores[0, THIRD].fingerprint = "of another model"
    async with apis(place) as (one, two):
        with pytest.raises(RequestError, match="would give other tokens"):
            await one.cores.add(THIRD)
        assert one.indices() == two.indices() == [0, 1]
        assert [core.index for core in one.cores.status()] == [0, 1]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://host:80", "must be ipc://PATH or tcp://HOST:PORT, got 'http://host:80'"),
        ("tcp://host:*", "must be ipc://PATH or tcp://HOST:PORT"),
        ("tcp://host:5000", "tcp:// needs keys: start the server with --curve-keys FOLDER"),
        (FIRST, "the core at ipc://first is there already"),
    ],
)
async def test_an_address_that_cannot_be_used_is_refused(address: str, text: str) -> None:
    async with apis(Place(), 1) as (one,):
        with pytest.raises(RequestError, match=text.replace("*", r"\*")) as refused:
            await one.cores.add(address)
        assert refused.value.parameter == "address"


async def test_the_last_core_stays_and_an_unknown_one_is_named() -> None:
    async with apis(Place(), 1) as (one,):
        await one.cores.remove(1, 0.0)
        with pytest.raises(RequestError, match="core 0 is the only one"):
            await one.cores.remove(0, 0.0)
        await until(lambda: [core.index for core in one.cores.status()] == [0])
        with pytest.raises(UnknownCoreError, match="there is no core 7: the server has 0"):
            await one.cores.remove(7, 0.0)


async def test_who_comes_later_does_not_take_another_model_for_the_servers() -> None:
    place = Place()
    async with apis(place, 1) as (one,):
        await until(lambda: place.state.cores.list.fingerprint == "fingerprint")
        place.cores[1, FIRST].fingerprint = "of another model"
        two = await place.api(1)
        assert [core.condition.ready for core in two.client.cores] == [False, True]
        assert two.client.fingerprint == one.client.fingerprint
        place.cores[2, SECOND].fingerprint = place.cores[2, FIRST].fingerprint = "of another model"
        with pytest.raises(EngineDeadError, match="would give other tokens \\(fingerprint of anoth, not fingerpr\\)"):
            await place.api(2)
        two.client.close()


async def test_who_took_another_model_ends_when_it_hears_of_the_servers() -> None:
    place = Place()
    for address in (FIRST, SECOND):
        place.cores[1, address].fingerprint = "of another model"
    one, two = await place.api(0), await place.api(1)
    two.client.submit([5], GREEDY, Reader(1))
    following = asyncio.create_task(one.cores.follow())
    await until(lambda: place.state.cores.list.fingerprint == "fingerprint")
    following_too = asyncio.create_task(two.cores.follow())
    assert "would give other tokens" in str(await two.client.death())
    assert not two.client.num_requests
    for task in (following, following_too):
        task.cancel()
    one.client.close()


async def test_the_only_core_may_come_again_with_another_model() -> None:
    place = Place()
    async with apis(place, 1) as (one,):
        await until(lambda: place.state.cores.list.fingerprint == "fingerprint")
        await one.cores.remove(1, 0.0)
        await until(lambda: one.indices() == [0])
        assert place.state.cores.list.fingerprint == ""
        place.cores[1, FIRST].fingerprint = "of another model"
        two = await place.api(1)
        assert two.client.fingerprint == "of another model"
        two.client.close()


async def test_a_core_stays_where_the_other_one_gives_other_tokens() -> None:
    place = Place()
    place.cores[0, SECOND].fingerprint = "of another model"
    async with apis(place, 1) as (one,):
        with pytest.raises(RequestError, match="core 0 stays, as no other core is ready"):
            await one.cores.remove(0, 0.0)
        assert one.indices() == [0, 1]
