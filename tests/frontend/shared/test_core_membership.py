"""All API processes follow one list of cores, and a core that leaves is gone when none of them is connected to it."""

import asyncio

import msgspec
import pytest

from pyllm.config.engine_settings import MAX_CORES
from pyllm.config.process_config import SharedConfig
from pyllm.frontend.shared.core_membership import CoreMembership
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.messages import CoreRefusal
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.wire.supervision_messages import CoreEntry, CoreList

CONFIG = SharedConfig(core_addresses=("ipc://0", "ipc://1"), max_num_seqs=8)
UNKNOWN = CoreList(version=-1)
NEW = CoreEntry(2, "ipc://2", 6)


def indices(found: CoreList | CoreRefusal) -> list[int]:
    assert isinstance(found, CoreList), found
    return [core.index for core in found.cores]


def test_a_core_comes_and_leaves() -> None:
    capacities: list[int] = []
    cores = CoreMembership(CONFIG, capacities.append)
    for member in (1, 2):
        cores.connect(member, cores.list, (0, 1))
    assert cores.reserve(cores.list) == 2
    assert indices(cores.add(cores.list, NEW)) == [0, 1, 2]
    assert capacities == [14]
    cores.connect(1, cores.list, (0, 1, 2))
    left = cores.leave(cores.list, 1, 30.0)
    assert isinstance(left, CoreList)
    assert [(core.is_leaving, core.leave_timeout) for core in left.cores] == [(False, 0.0), (True, 30.0), (False, 0.0)]
    assert capacities[-1] == 10
    assert cores.leave(cores.list, 1, 1.0) == left, "it leaves already"
    cores.connect(1, cores.list, (0, 2))
    assert indices(cores.list) == [0, 1, 2], "the other API process is connected to it still"
    cores.drop(2)
    assert indices(cores.list) == [0, 2]
    assert cores.reserve(cores.list) == 3, "no index is used twice"


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    cores = CoreMembership(CONFIG)
    cores.connect(1, cores.list, (0, 1))
    assert cores.leave(cores.list, 7, 1.0) == CoreRefusal("there is no core 7: the server has 0, 1", is_unknown=True)
    assert cores.add(cores.list, CoreEntry(2, "ipc://1", 4)) == CoreRefusal("core 1 at ipc://1 is in use already")
    cores.leave(cores.list, 1, 1.0)
    assert cores.leave(cores.list, 0, 1.0) == CoreRefusal(
        "core 0 is the only one that takes requests: add another one first"
    )
    assert cores.add(cores.list, CoreEntry(2, "ipc://1", 4)) == CoreRefusal(
        "core 1 at ipc://1 is leaving: add it again when it has left"
    )
    many = CoreMembership(SharedConfig(core_addresses=tuple(map(str, range(MAX_CORES)))))
    assert isinstance(many.add(many.list, CoreEntry(99, "ipc://new", 4)), CoreRefusal)


def test_a_state_that_begins_anew_takes_the_list_that_an_api_process_has() -> None:
    capacities: list[int] = []
    first = CoreMembership(CONFIG)
    first.connect(1, first.list, (0, 1))
    first.reserve(first.list)
    first.add(first.list, NEW)
    known = first.leave(first.list, 0, 5.0)
    assert isinstance(known, CoreList)
    second = CoreMembership(CONFIG, capacities.append)
    second.connect(1, known, (0, 1, 2))
    assert second.list == known
    assert capacities == [10]
    second.connect(1, known, (1, 2))
    assert indices(second.list) == [1, 2]
    assert second.reserve(CoreList()) == 3


def test_several_cores_have_the_fingerprint_of_the_first_that_answered() -> None:
    cores = CoreMembership(CONFIG)
    told = msgspec.structs.replace(cores.list, fingerprint="first")
    cores.connect(1, told, (0, 1))
    assert (cores.list.fingerprint, cores.list.version) == ("first", 1)
    cores.connect(2, msgspec.structs.replace(cores.list, fingerprint="second"), (0, 1))
    assert (cores.list.fingerprint, cores.list.version) == ("first", 1)
    cores.leave(cores.list, 1, 0.0)
    assert cores.list.fingerprint == "", "the one that stays may come again with another"
    cores.add(msgspec.structs.replace(cores.list, fingerprint="second"), NEW)
    assert cores.list.fingerprint == "second"


def test_the_next_state_begins_with_the_cores_of_the_one_before() -> None:
    kept: list[CoreList] = []
    first = CoreMembership(CONFIG, on_change=kept.append)
    first.add(first.list, NEW)
    first.connect(1, first.list, (0, 1, 2))
    first.leave(first.list, 0, 5.0)
    assert kept[-1] == first.list
    capacities: list[int] = []
    second = CoreMembership(msgspec.structs.replace(CONFIG, cores=kept[-1]), capacities.append)
    assert (second.list, capacities) == (first.list, [10])
    second.connect(1, second.list, (1, 2))
    assert indices(second.list) == [1, 2], "nobody is connected any more to the core that was leaving"


async def test_an_api_process_waits_for_the_next_list_once() -> None:
    state = SharedState(CONFIG)
    one, two = LocalState(state, 1), LocalState(state, 2)
    known = await one.follow_cores(UNKNOWN, ())
    assert indices(known) == [0, 1]
    waiting = [asyncio.ensure_future(each.follow_cores(known, (0, 1))) for each in (one, two)]
    await asyncio.sleep(0)
    anew = asyncio.ensure_future(one.follow_cores(known, (0, 1)))
    assert await waiting[0] == known, "another call ends it"
    assert not waiting[1].done()
    changed = await two.add_core(known, NEW)
    assert [await anew, await waiting[1]] == [changed, changed]


@pytest.mark.parametrize("scales", [True, False])
async def test_the_queue_grows_and_shrinks_with_the_cores(scales: bool) -> None:
    state = SharedState(
        SharedConfig(core_addresses=("ipc://0", "ipc://1"), max_num_seqs=8, max_num_queued_reqs=32, scales_queue=scales)
    )
    local = LocalState(state, 1)
    known = await local.follow_cores(UNKNOWN, ())
    queue = state._queue
    assert (queue.enter(40), queue.num_queued) == (None, 32)
    assert queue.enter(1) is not None
    await local.add_core(known, CoreEntry(2, "ipc://2", 4))
    # Four more can run; by default, twice as many as run may wait besides.
    assert queue.num_queued == 28
    assert (queue.enter(4 + 16 * scales), queue.num_queued) == (None, 32 + 16 * scales)
    assert queue.enter(1) is not None
