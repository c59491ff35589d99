"""The order in which the processes of a server end, with fakes that only write down what they are told."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from pyllm.errors import PyllmError
from pyllm.supervision.server_processes import STOP_GRACE, supervise
from pyllm.supervision.supervised_process import SupervisedProcess


class FakeSupervisedProcess:
    """A child that is ready at once, and that ends some turns of the loop after it was told to."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events

    def spawn(self) -> None:
        self._events.append(f"{self._name} starts")

    async def start(self, on_lost: Callable[[BaseException], None]) -> str:
        return "address"

    def stand_by(self) -> None:
        self._events.append(f"{self._name} has a spare")

    def expect_end(self) -> None:
        """It ends as it is told."""

    async def stop(self, grace: float) -> None:
        self._events.append(f"{self._name} is told to end in {grace:g} s")
        for _ in range(9):
            await asyncio.sleep(0)
        self._events.append(f"{self._name} has ended")


async def test_groups_end_one_after_the_other_and_the_port_as_soon_as_nobody_new_needs_it() -> None:
    events: list[str] = []
    names = [["api 0", "api 1"], [], ["core"]]
    groups = [[cast(Any, FakeSupervisedProcess(name, events)) for name in group] for group in names]

    def announce(addresses: list[str]) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return addresses[0]

    await supervise(
        cast("list[list[SupervisedProcess]]", groups), announce, 30.0, lambda: events.append("the port is closed")
    )
    within = f"is told to end in {30 + STOP_GRACE:g} s"
    assert [event for event in events if not event.endswith(("starts", "spare"))] == [
        *(f"api 0 {within}", f"api 1 {within}", "the port is closed", "api 0 has ended", "api 1 has ended"),
        *(f"core {within}", "core has ended"),
    ]


async def test_a_closed_terminal_drains_however_often_it_says_so() -> None:
    events: list[str] = []

    class Slow(FakeSupervisedProcess):
        async def stop(self, grace: float) -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            await super().stop(grace)

        def kill(self) -> None:
            events.append("killed")

    def announce(addresses: list[str]) -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        return ""

    await supervise(cast("list[list[SupervisedProcess]]", [[Slow("core", events)]]), announce, 30.0)
    assert events[-1] == "core has ended"
    assert "killed" not in events


async def test_of_replicas_the_last_loss_ends_all() -> None:
    events: list[str] = []
    on_lost: list[Callable[[BaseException], None]] = []

    class Lost(FakeSupervisedProcess):
        async def start(self, on_lost_: Callable[[BaseException], None]) -> str:
            on_lost.append(on_lost_)
            return await super().start(on_lost_)

        def give_up(self, reason: str) -> None:
            events.append(f"{self._name} hears of {reason}")

    cores: list[Any] = [Lost("core 0", events), Lost("core 1", events)]

    async def work() -> None:
        on_lost[0](PyllmError("the loss of core 0"))
        for _ in range(9):
            await asyncio.sleep(0)
        events.append("core 1 goes on")
        on_lost[1](PyllmError("the loss of core 1"))
        await asyncio.Event().wait()

    with pytest.raises(PyllmError, match="the loss of core 1"):
        await supervise([cores], lambda addresses: "", 30.0, work=work, replicas=cores)
    told = [event for event in events if "goes on" in event or "hears" in event]
    assert told == ["core 1 goes on", *(f"core {index} hears of the loss of core 1" for index in (0, 1))]


async def test_a_stdout_that_nobody_reads_keeps_nobody_from_standing_by() -> None:
    events: list[str] = []
    reader, writer = os.pipe()
    os.close(reader)

    class LastPlace(FakeSupervisedProcess):
        def stand_by(self) -> None:
            super().stand_by()
            os.kill(os.getpid(), signal.SIGTERM)

    with os.fdopen(writer, "w") as stdout, contextlib.redirect_stdout(stdout):
        await supervise(
            cast("list[list[SupervisedProcess]]", [[LastPlace("core", events)]]), lambda addresses: "ready", 30.0
        )
    assert "core has a spare" in events


async def test_with_work_all_end_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        events.append("the work is done")

    groups = cast("list[list[SupervisedProcess]]", [[FakeSupervisedProcess("core", events)]])
    await supervise(groups, lambda addresses: "", 30.0, work=work)
    assert capsys.readouterr().out == ""
    assert events[:3] == ["core starts", "core has a spare", "the work is done"]
    assert events[-1] == "core has ended"


async def test_a_signal_cancels_the_work() -> None:
    events: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("the work is cancelled")
            raise

    groups = cast("list[list[SupervisedProcess]]", [[FakeSupervisedProcess("core", events)]])
    await supervise(groups, lambda addresses: "", 30.0, work=work)
    assert "the work is cancelled" in events
    assert events[-1] == "core has ended"
