"""Who takes a dead child's place, and when nobody does: with children that are only said to start and to end."""

import asyncio
import signal
from typing import cast

import msgspec
import pytest

from pyllm.errors import EngineDeadError, GivenUpError, StartError
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.parent_link import FINAL_EXIT_CODE
from pyllm.supervision.supervised_process import FREE_DEATHS, ProcessLimits, SupervisedProcess, start_state
from pyllm.wire.messages import Restarts


class Config(msgspec.Struct):
    """What a child is told: the address that the one before served."""

    address: str


class FakeProcess:
    """A child that starts and ends when the test says so."""

    stage = "ready"
    progress = 0.0
    step = -1
    failure: str | None = None
    failed_by_setting = False
    given_up = ""
    blamed_on_request = False
    config: Config | None = None
    is_unkillable = False

    def __init__(self, number: int) -> None:
        self.name = f"child {number}"
        self.pid = number
        self.restarts: tuple[Restarts, ...] = ()  # of its own children

    def watch(self) -> None:
        self.started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def configure(self, config: Config) -> None:
        self.config = config

    def end(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

    def kill(self) -> None:
        self.end(-signal.SIGKILL)

    async def stop(self, grace: float) -> int | None:
        del grace
        if self.is_unkillable:
            return None
        self.end(0)
        return self.exited.result()

    def give_up(self, reason: str) -> None:
        self.given_up = reason

    ready, exit_summary, error = ChildProcess.ready, ChildProcess.exit_summary, ChildProcess.error


class Family:
    """Makes children, a place for them, and notes what happens to it."""

    def __init__(self, max_restarts: int = 10, ready_timeout: float = 60.0, warm_spare: bool = False) -> None:
        self.children: list[FakeProcess] = []
        self.dead: list[str] = []
        self.released: list[int] = []  # how many children there had been
        self.lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.now = 0.0
        self.num_failures = 0  # of the next starts
        limits = ProcessLimits(
            ready_timeout=ready_timeout, max_restarts=max_restarts, warm_spare=warm_spare, spare_delay=0.0
        )
        self.place = SupervisedProcess(
            self.spawn,
            Config,
            limits,
            lambda dead: self.dead.append(dead.name),
            lambda: self.now,
            release=lambda: self.released.append(len(self.children)),
        )

    def spawn(self) -> ChildProcess:
        if self.num_failures:
            self.num_failures -= 1
            raise BlockingIOError("no process is left")
        self.children.append(FakeProcess(len(self.children)))
        return cast(ChildProcess, self.children[-1])

    async def start(self) -> None:
        starting = asyncio.create_task(self.place.start(self.lost.set_result))
        await asyncio.sleep(0)
        self.children[0].started.set_result("the address")
        assert await starting == "the address"

    async def child(self, number: int, configured: bool = True) -> FakeProcess:
        """Wait for one to be there."""
        while len(self.children) <= number or (configured and self.children[number].config is None):
            await asyncio.sleep(0)
        return self.children[number]


async def test_what_outlives_children_is_released_with_the_last_one() -> None:
    family = Family()
    await family.start()
    family.children[0].end(1)
    await family.child(1)
    assert family.released == []
    await family.place.stop(1.0)
    assert family.released == [2]
    killed = Family()
    await killed.start()
    killed.place.kill()
    assert killed.released == [1]


async def test_a_dead_child_is_followed_by_one_that_serves_its_address() -> None:
    family = Family()
    await family.start()
    assert family.children[0].config == Config("")
    family.children[0].end(1)
    assert (await family.child(1)).config == Config("the address")
    family.children[1].started.set_result("the address")
    family.children[1].kill()
    await family.child(2)
    assert family.dead == ["child 0", "child 1"]
    await family.place.stop(1.0)
    assert not family.lost.done()


async def test_restarts_are_counted_with_their_reasons_and_with_those_of_the_childs_own_children() -> None:
    family = Family()
    await family.start()
    assert family.place.restarts == ()
    family.now = 5.0
    family.children[0].end(1)
    (await family.child(1)).started.set_result("the address")
    assert family.place.restarts == (Restarts(1, 1, 5.0, "child 0 exited with code 1 while ready"),)
    family.now = 7.0
    family.children[1].kill()
    grandchild = Restarts(77, 4, 6.0, "its device had no memory left")
    (await family.child(2)).restarts = (grandchild,)
    assert family.place.restarts == (Restarts(2, 2, 7.0, "child 1 was killed by SIGKILL while ready"), grandchild)
    await family.place.stop(1.0)


async def test_a_first_child_that_dies_before_it_is_ready_is_not_followed() -> None:
    family = Family()
    starting = asyncio.create_task(family.place.start(family.lost.set_result))
    await asyncio.sleep(0)
    family.children[0].end(1)
    with pytest.raises(StartError, match="child 0 exited with code 1"):
        await starting
    assert len(family.children) == 1


async def test_a_death_while_starting_is_just_another_death() -> None:
    family = Family()
    await family.start()
    family.children[0].kill()
    (await family.child(1)).end(1)
    (await family.child(2)).started.set_result("")
    assert family.dead == ["child 0", "child 1"]
    await family.place.stop(1.0)


async def test_a_successor_that_is_late_is_killed_and_followed() -> None:
    family = Family(ready_timeout=0.1)
    await family.start()
    family.children[0].kill()
    late = await family.child(1)
    assert await late.exited == -signal.SIGKILL
    assert late.failure == "it was not ready after 0.1 s"
    await family.child(2)
    await family.place.stop(1.0)


async def test_a_child_that_had_a_reason_to_end_is_not_followed() -> None:
    family = Family()
    await family.start()
    family.children[0].end(FINAL_EXIT_CODE)
    reason = await family.lost
    assert isinstance(reason, EngineDeadError)
    assert str(reason) == f"child 0 exited with code {FINAL_EXIT_CODE} while ready"
    assert len(family.children) == 1


async def test_a_child_that_somebody_else_has_told_to_end_is_followed() -> None:
    family = Family()
    await family.start()
    family.children[0].end(0)
    (await family.child(1)).started.set_result("")
    assert not family.lost.done()
    await family.place.stop(1.0)


async def test_who_ends_when_that_is_expected_is_not_lost() -> None:
    family = Family()
    await family.start()
    family.place.expect_end()
    family.children[0].kill()
    (await family.child(1)).started.set_result("")  # It is needed until it is told to end.
    family.children[1].end(0)
    await family.place.stop(1.0)
    assert not family.lost.done()


async def test_too_many_deaths_end_the_process_with_the_last_exit_summary() -> None:
    family = Family(max_restarts=2)
    await family.start()
    for number in range(3):
        (await family.child(number)).kill()
    reason = await family.lost
    assert isinstance(reason, GivenUpError)
    assert "child 2 was killed by SIGKILL" in str(reason)
    assert "max_restarts allows 2 times within 60 s" in str(reason)


async def test_deaths_by_one_request_alone_cost_no_restart_and_wait_for_nothing() -> None:
    family = Family(max_restarts=2)
    await family.start()
    for number in range(12):
        child = await family.child(number)
        child.blamed_on_request = number not in (0, 4)
        child.kill()
    last = await family.child(12)
    assert not family.lost.done()
    last.kill()
    assert "child 12 was killed" in str(await family.lost)


async def test_who_blames_a_request_whenever_it_dies_is_lost_all_the_same() -> None:
    family = Family(max_restarts=1)
    await family.start()
    for number in range(1 + FREE_DEATHS + 1):
        child = await family.child(number)
        child.blamed_on_request = True
        child.kill()
    assert isinstance(await family.lost, GivenUpError)
    assert len(family.children) == 1 + FREE_DEATHS + 1


async def test_a_child_that_cannot_be_started_costs_a_restart() -> None:
    family = Family(max_restarts=3)
    await family.start()
    family.num_failures = 2
    family.children[0].kill()
    await family.child(1)
    assert not family.lost.done()
    family.children[1].kill()
    reason = await family.lost
    assert isinstance(reason, GivenUpError)
    assert "child 1 was killed by SIGKILL" in str(reason)


async def test_what_can_never_be_started_loses_the_place_with_the_reason() -> None:
    family = Family(max_restarts=2)
    await family.start()
    family.num_failures = 9
    family.children[0].kill()
    reason = await family.lost
    assert isinstance(reason, GivenUpError)
    assert "child 0 could not be started: no process is left; it is not started anew" in str(reason)


async def test_a_spare_that_cannot_be_started_is_tried_again() -> None:
    family = Family(warm_spare=True)
    await family.start()
    family.num_failures = 1
    family.place.stand_by()
    await family.child(1, configured=False)
    await family.place.stop(1.0)


async def test_deaths_of_long_ago_do_not_count() -> None:
    family = Family(max_restarts=1)
    await family.start()
    for number in range(4):
        child = await family.child(number)
        family.now += 61.0
        child.kill()
    await family.child(4)
    assert not family.lost.done()
    await family.place.stop(1.0)


async def test_the_spare_takes_the_place_and_another_one_stands_by() -> None:
    family = Family(warm_spare=True)
    await family.start()
    family.place.stand_by()
    spare = await family.child(1, configured=False)
    assert spare.config is None
    family.children[0].kill()
    assert (await family.child(1)).config == Config("the address")
    assert len(family.children) == 2
    spare.started.set_result("the address")  # Not before it is ready: two would start beside each other.
    assert (await family.child(2, configured=False)).config is None
    await family.place.stop(1.0)
    assert family.children[2].exited.result() == -signal.SIGKILL


async def test_a_dead_spare_takes_no_place() -> None:
    family = Family(warm_spare=True, max_restarts=2)
    await family.start()
    family.place.stand_by()
    (await family.child(1, configured=False)).kill()
    (await family.child(2, configured=False)).kill()  # And now there is none.
    family.children[0].kill()
    assert (await family.child(3)).config == Config("the address")
    assert family.children[1].config is None
    assert family.children[2].config is None
    await family.place.stop(1.0)


async def test_a_child_that_cannot_be_killed_is_told_of_and_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    family = Family()
    await family.start()
    family.children[0].is_unkillable = True
    await family.place.stop(1.0)
    assert "child 0 could not be killed: it is left behind, while ready" in caplog.text


async def test_a_place_that_is_told_to_end_has_no_successor() -> None:
    for end in (lambda place: place.stop(1.0), lambda place: place.kill()):
        family = Family()
        await family.start()
        ending = end(family.place)
        if ending is not None:
            await ending
        for _ in range(10):  # turns in which a successor would have been started
            await asyncio.sleep(0)
        assert len(family.children) == 1
        assert not family.lost.done()


async def test_a_place_that_is_told_to_end_while_its_child_becomes_ready_has_no_successor() -> None:
    family = Family()
    starting = asyncio.ensure_future(family.place.start(family.lost.set_result))
    while not family.children:
        await asyncio.sleep(0)
    child = await family.child(0)
    child.started.set_result("address")
    family.place.kill()
    assert await starting == "address"
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(family.children) == 1
    assert not family.lost.done()


async def test_a_child_is_told_that_what_it_needs_is_lost() -> None:
    family = Family()
    await family.start()
    family.place.give_up("no core")
    assert family.children[0].given_up == "no core"
    await family.place.stop(1.0)


async def test_a_start_is_described_by_those_that_are_not_ready() -> None:
    family, other = Family(), Family()
    places = [family.place, other.place]
    assert start_state(places) == (0.0, "")  # None is started.
    for place in places:
        place.spawn()
    (child,), (waiting,) = family.children, other.children
    child.stage, child.progress, waiting.stage = "loading the model", 0.5, "importing"
    assert start_state(places) == (0.5, "child 0 is loading the model, child 0 is importing")
    waiting.stage = "waiting for the core"
    assert start_state(places) == (0.5, "child 0 is loading the model")
    child.stage = "ready"
    assert start_state(places) == (0.5, "")
