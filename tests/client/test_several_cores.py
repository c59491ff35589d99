"""A client of several cores: where requests go, also when a core is lost, and figures of all."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.client.core_connection import LOSS_AMONG_SEVERAL
from pyllm.client.cores import EVACUATION_DELAY, PROBATION, SUCCESSOR_PATIENCE
from pyllm.client.reports import RequestReport, TenantReport
from pyllm.core.replay import replay_file
from pyllm.errors import ConfigError, EngineDeadError, RequestError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import SchedulingParams
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.ipc import MalformedHandler, MessageHandler
from pyllm.wire.messages import Abort, Call, CoreMessage, FinishCode, Heartbeat, Rejected, Submit
from tests.client.fake_core import EPOCH, Cores, FakeCore, Row, ScriptedCore
from tests.client.mortal_core import Reader

GREEDY = SamplingParams(temperature=0.0)


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ReachableCore(FakeCore):
    """Each connection reaches the same core."""

    def connect(
        self,
        on_message: MessageHandler[CoreMessage],
        on_malformed: MalformedHandler,
        on_disconnect: Callable[[], None],
    ) -> FakeCore:
        self.closed = False
        return super().connect(on_message, on_malformed, on_disconnect)


async def connected(*cores: FakeCore | Cores, clock: Callable[[], float] | None = None) -> EngineClient:
    """A client that sends to each of these in turn."""
    clock = clock or Clock()
    client = EngineClient(
        *(core.connect for core in cores),
        placement="round-robin",
        addresses=[f"place-{index}" for index in range(len(cores))],
        heartbeats=False,
        clock=clock,
    )
    await client.start()
    return client


def fakes(count: int) -> list[FakeCore]:
    return [FakeCore(epoch=EPOCH + index) for index in range(count)]


def prompts(core: FakeCore) -> list[int]:
    """The first token of each prompt that a core was sent."""
    return [submit.prompt[0] for submit in core.sent(Submit)]


async def test_a_request_goes_to_the_core_that_it_asks_for_while_that_is_there() -> None:
    cores = fakes(2)
    client = await connected(*cores)
    on_second = SchedulingParams(data_parallel_rank=1)
    for _ in range(3):
        client.submit([5], GREEDY, Reader(1), on_second)
    assert [len(core.sent(Submit)) for core in cores] == [0, 3]
    with pytest.raises(RequestError, match="there is no core 2; there are: 0, 1"):
        client.submit([5], GREEDY, Reader(1), SchedulingParams(data_parallel_rank=2))
    cores[1].answers_hello = False
    cores[1].on_disconnect()
    client.submit([5], GREEDY, Reader(1), on_second)
    assert len(cores[0].sent(Submit)) >= 1
    client.close()


async def test_the_abort_by_which_a_request_leaves_its_core_does_not_end_it() -> None:
    cores = fakes(2)
    client = await connected(*cores)
    reader = Reader(1)
    client.submit([5], GREEDY, reader)
    (submit,) = cores[0].sent(Submit)
    cores[1].answers_hello = False
    cores[1].on_disconnect()
    cores[0].say(Heartbeat("draining"))
    client.beat()
    assert cores[0].sent(Abort) == [Abort(cores[0].epoch, submit.request)]
    cores[0].say_rows(Row(submit.request, [], finish=FinishCode.ABORT))
    assert (client.num_requests, reader.finishes) == (1, [None])
    client.close()


async def test_each_core_gets_its_turn() -> None:
    cores = fakes(3)
    client = await connected(*cores)
    for number in range(1, 8):
        client.submit([number], GREEDY, Reader(1))
    assert [prompts(core) for core in cores] == [[1, 4, 7], [2, 5], [3, 6]]
    assert [report.num_requests for report in client.cores] == [3, 2, 2]
    assert [report.address for report in client.cores] == ["place-0", "place-1", "place-2"]


async def test_what_a_lost_core_had_waits_for_one_without_other_work() -> None:
    clock, follower = Clock(), ReachableCore(epoch=99)
    first, second = fakes(2)
    client = await connected(Cores(first, follower), second, clock=clock)
    readers = [Reader(1) for _ in range(4)]
    ids = [client.submit([number], GREEDY, reader) for number, reader in enumerate(readers)]
    first.say_rows(Row(ids[0], [5]))
    follower.answers_hello = False
    first.on_disconnect()
    assert prompts(second) == [1, 3]  # It computes what is above suspicion.
    client.submit([9], GREEDY, Reader(1))
    assert prompts(second) == [1, 3, 9]
    follower.answers_hello = True
    for _ in range(6):
        client.beat()
        second.say(Heartbeat("ready"))
    assert prompts(follower) == [0, 2]
    resumed = follower.sent(Submit)[0]
    assert (resumed.outputs[0].tokens, resumed.num_losses) == (b"\5\0\0\0", 1)
    follower.say_rows(Row(resumed.request, [6], 1, finish=FinishCode.LENGTH))
    assert (readers[0].tokens, readers[0].errors) == ([[5, 6]], [])


async def test_a_core_that_follows_a_lost_one_gets_new_requests_once_its_probation_is_over() -> None:
    clock, follower = Clock(), FakeCore(epoch=99)
    first, second = fakes(2)
    client = await connected(Cores(first, follower), second, clock=clock)
    first.on_disconnect()
    for number in range(3):
        client.submit([number], GREEDY, Reader(1))
    assert (prompts(second), prompts(follower)) == ([0, 1, 2], [])
    clock.now += PROBATION
    for number in range(3, 5):
        client.submit([number], GREEDY, Reader(1))
    assert (prompts(second), prompts(follower)) == ([0, 1, 2, 4], [3])


async def test_a_core_out_of_reach_that_is_back_has_ended_nothing() -> None:
    first, second = ReachableCore(), FakeCore(epoch=99)
    client = await connected(first, second)
    request = client.submit([1], GREEDY, Reader(1))
    client.submit([2], GREEDY, Reader(1))
    first.on_disconnect()  # The next connection is to the same core, of the same epoch.
    again = first.sent(Submit)[1]
    assert (again.request != request, again.num_losses) == (True, 0)
    assert prompts(second) == [2]


async def test_one_that_nobody_has_time_for_gets_a_core_that_is_made_free() -> None:
    clock, gone = Clock(), FakeCore()
    gone.answers_hello = False
    first, second, third = fakes(3)
    client = await connected(Cores(first, gone), second, third, clock=clock)
    for number in range(6):
        client.submit([number], GREEDY, Reader(1))
    client.submit([6], GREEDY, Reader(1))  # To the first.
    first.on_disconnect()
    clock.now += EVACUATION_DELAY
    client.beat()
    client.beat()
    assert [prompts(second), prompts(third)] == [[1, 4, 0, 3, 6], [2, 5, 1, 4]]
    assert len(second.sent(Abort)) == 2
    client.submit([9], GREEDY, Reader(1))
    assert prompts(third)[-1] == 9  # The second one is for suspects.


async def test_without_a_free_core_it_runs_alone_on_a_busy_one() -> None:
    clock, gone = Clock(), FakeCore()
    gone.answers_hello = False
    first, second = fakes(2)
    client = await connected(Cores(first, gone), second, clock=clock)
    for number in range(2):
        client.submit([number], GREEDY, Reader(1))
    first.on_disconnect()
    clock.now += SUCCESSOR_PATIENCE - 0.1  # The first may come back until then.
    client.beat()
    assert prompts(second) == [1]
    clock.now += 0.1
    client.beat()
    assert prompts(second) == [1, 0]
    assert [submit.num_losses for submit in second.sent(Submit)] == [0, 2]


async def test_a_core_that_drains_sends_its_requests_away_and_loses_nothing() -> None:
    first, second = fakes(2)
    client = await connected(first, second)
    reader = Reader(1)
    request = client.submit([1], GREEDY, reader)
    first.say_rows(Row(request, [5]))
    first.say(Heartbeat("draining"))
    client.beat()
    (moved,) = second.sent(Submit)
    assert (moved.outputs[0].tokens, moved.num_losses, len(first.sent(Abort))) == (b"\5\0\0\0", 0, 1)
    other = client.submit([2], GREEDY, Reader(1))
    assert prompts(second) == [1, 2]
    second.say(Rejected(other, "draining", "the engine is shutting down"))
    assert client.num_requests == 2  # It waits for a core that takes it.


async def test_a_core_that_ends_its_requests_is_not_the_last_word() -> None:
    first, second = fakes(2)
    client = await connected(first, second)
    reader = Reader(1)
    client.submit([1], GREEDY, reader)
    first.end()
    assert (prompts(second), reader.errors) == ([1], [])


async def test_a_stalled_core_is_lost() -> None:
    first, second = fakes(2)
    client = await connected(first, second)
    client.submit([1], GREEDY, Reader(1))
    first.say(Heartbeat("stalled", reason="no step for 30 s"))
    client.beat()
    assert len(first.sent(Abort)) == 1
    (resumed,) = second.sent(Submit)  # It has nothing else to do.
    assert resumed.num_losses == 1
    client.submit([2], GREEDY, Reader(1))
    assert prompts(first) == [1]
    first.say(Heartbeat("ready"))
    client.submit([3], GREEDY, Reader(1))
    assert prompts(first) == [1, 3]


async def test_a_silent_core_is_lost_sooner_where_there_are_others() -> None:
    first, second = fakes(2)
    client = await connected(Cores(first, FakeCore(epoch=99)), second)
    client.submit([1], GREEDY, Reader(1))
    for _ in range(int(LOSS_AMONG_SEVERAL / HEARTBEAT_INTERVAL)):
        client.beat()
        second.say(Heartbeat("ready"))
    assert not first.closed
    client.beat()
    assert first.closed
    assert prompts(second) == [1]


async def test_figures_are_those_of_all_cores_or_of_one() -> None:
    first, second, absent = (
        ScriptedCore(lambda prompt, sample: prompt),
        ScriptedCore(lambda prompt, sample: prompt),
        FakeCore(),
    )
    second.epoch, absent.answers_hello = EPOCH + 1, False
    for core, age, ended in ((first, 4.0, None), (second, 5.0, None), (second, 6.0, 1.0)):
        report = RequestReport(
            client=0,
            request=1,
            name="",
            tenant="",
            priority=0,
            num_samples=1,
            num_prompt_tokens=1,
            num_output_tokens=1,
            num_cached_tokens=0,
            num_blocks=1,
            num_preemptions=0,
            age=age,
            scheduled_age=None,
            ended_age=ended,
            finish=None,
            samples=[],
        )
        core.replies["requests"] = [*core.replies.get("requests", []), msgspec.structs.asdict(report)]
    for core, waiting in ((first, 1), (second, 2)):
        core.replies |= {"tenants": [("acme", 10, waiting)], "reconfigure": {"watermark": waiting}, "pin": waiting}
    client = EngineClient(
        *(core.connect for core in (first, second, absent)), placement="round-robin", heartbeats=False, clock=Clock()
    )
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(0)
    starting.cancel()
    assert (await client.stats())["num_preemptions"] == 6
    assert (await client.stats(core=1))["num_preemptions"] == 3
    assert list(await client.core_stats()) == [0, 1]
    assert [(report.core, report.age) for report in await client.requests()] == [(1, 5.0), (0, 4.0), (1, 6.0)]
    assert [report.age for report in await client.requests(core=0)] == [4.0]
    assert await client.tenants() == [TenantReport("acme", 20, 3)]
    assert await client.reconfigure(watermark=0.1) == {"watermark": 1}
    assert [len(core.sent(Call)) for core in (first, second)] == [6, 6]
    assert await client.pin(1, [1, 2]) == 2
    with pytest.raises(EngineDeadError):
        await client.stats(core=2)
    with pytest.raises(RequestError, match="there is no core 3; there are: 0, 1, 2"):
        await client.decisions(core=3)


async def test_a_pause_reaches_the_successor_of_a_core_that_was_lost_before_or_meanwhile() -> None:
    lost, dying, successor, other = (ScriptedCore(lambda prompt, sample: [], epoch=EPOCH + index) for index in range(4))
    for core in (successor, other):
        core.replies["pause"] = None
    dying.answers_hello = False
    client = await connected(Cores(lost, dying, successor), other)
    lost.on_disconnect()
    pausing = asyncio.create_task(client.pause_generation("keep"))
    while not other.sent(Call):
        await asyncio.sleep(0)
    client.beat()
    dying.on_disconnect()
    client.beat()
    await pausing
    for core in (successor, other):
        assert [call.method for call in core.sent(Call)] == ["pause"]
    client.close()


async def test_a_pause_that_waits_for_a_successor_ends_with_the_client_or_a_later_change() -> None:
    lost, other = (ScriptedCore(lambda prompt, sample: [], epoch=EPOCH + index) for index in range(2))
    absent = FakeCore()
    absent.answers_hello = False
    other.replies |= {"pause": None, "resume": None}
    client = await connected(Cores(lost, absent), other)
    lost.on_disconnect()
    pausing = asyncio.create_task(client.pause_generation("keep"))
    while not other.sent(Call):
        await asyncio.sleep(0)
    resuming = asyncio.create_task(client.resume_generation())
    await pausing  # It has reached the other core; its successor is to be resumed.
    client.close()
    await resuming


async def test_what_decides_where_requests_go_is_recorded(tmp_path: Path) -> None:
    cores, path = fakes(2), tmp_path / "placement"
    client = EngineClient(
        *(core.connect for core in cores), placement="prefix", heartbeats=False, placement_recording=path
    )
    await client.start()
    for number in range(4):
        client.submit([number], GREEDY, Reader(1))
    client.beat()
    assert [len(core.sent(Submit)) for core in cores] == [2, 2]  # They are equal.
    client.close()
    outcome = replay_file(path)
    assert (outcome["num_choices"], outcome["is_truncated"]) == (4, False)
    with pytest.raises(ConfigError, match="is not overwritten"):
        EngineClient(FakeCore().connect, placement="prefix", placement_recording=path)


async def test_the_last_core_is_not_free_while_others_may_come_again() -> None:
    clock, cores = Clock(), fakes(3)
    client = await connected(*cores, clock=clock)
    ids = [client.submit([90 + number], GREEDY, Reader(1)) for number in range(3)]
    for number in range(2):  # The first one's request ends the second one, too.
        cores[number].answers_hello = False
        cores[number].on_disconnect()
        cores[number + 1].say_rows(Row(ids[number + 1], [5], finish=FinishCode.LENGTH))
        client.beat()
    assert (prompts(cores[1]), prompts(cores[2])) == ([91, 90], [92])
    client.submit([7], GREEDY, Reader(1))
    assert prompts(cores[2]) == [92, 7]
    client.close()
