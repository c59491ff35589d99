"""What is waited for, and the bar, are for people at a terminal: they leave nothing in a log."""

import asyncio
import io
import logging

import pytest

from pyllm.supervision.json_log import JsonFormatter
from pyllm.supervision.start_progress import show_progress
from tests.waiting import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def kind_of_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("kind", ["dumb", "unknown", ""])
async def test_a_terminal_that_cannot_redraw_sees_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", kind)
    terminal = Terminal()
    await show_progress(lambda: (0.5, "core 0 is starting"), terminal)
    assert terminal.getvalue() == ""


async def test_a_terminal_sees_how_far_it_is() -> None:
    terminal, state = Terminal(), [(0.0, "core 0 is starting")]
    showing = asyncio.create_task(show_progress(lambda: state[0], terminal))
    await asyncio.sleep(0)
    assert last_line(terminal) == "starting: core 0 is starting, 00:00"
    state[0] = (0.0, "core 0 is starting the workers")
    await until(lambda: "starting: core 0 is starting the workers," in terminal.getvalue())
    state[0] = (0.25, "core 0 is starting the workers")
    await until(lambda: "loading weights  25 %" in terminal.getvalue())
    state[0] = (0.75, "core 0 is starting the workers")
    await until(lambda: "loading weights  75 %" in terminal.getvalue())
    state[0] = (1.0, "core 0 is capturing steps")
    await until(lambda: last_line(terminal).startswith("starting: core 0 is capturing steps,"))
    await end(showing)
    assert last_line(terminal) == ""


@pytest.mark.parametrize("state", [(0.5, ""), (0.0, "core 0 is starting")])
async def test_it_goes_with_its_task(state: tuple[float, str]) -> None:
    terminal = Terminal()
    showing = asyncio.create_task(show_progress(lambda: state, terminal))
    await asyncio.sleep(0)
    assert last_line(terminal) != ""
    await end(showing)
    assert last_line(terminal) == ""


async def test_many_processes_are_still_one_line() -> None:
    terminal = Terminal()
    many = ", ".join(f"API process {index} is importing the frontend" for index in range(64))
    showing = asyncio.create_task(show_progress(lambda: (0.0, many), terminal))
    await asyncio.sleep(0)
    line = last_line(terminal)
    assert line.startswith("starting: API process 0 is importing the frontend, API process 1 ...,")
    assert len(line) < 80
    await end(showing)


async def end(showing: asyncio.Task[None]) -> None:
    showing.cancel()
    await asyncio.wait({showing})
    assert showing.cancelled()


def last_line(terminal: Terminal) -> str:
    """What was written last over what stood there."""
    return terminal.getvalue().rstrip("\r").rpartition("\r")[2].strip()


async def test_a_log_sees_nothing() -> None:
    log = io.StringIO()
    await show_progress(lambda: (0.5, "core 0 is starting"), log)
    assert log.getvalue() == ""


async def test_a_json_log_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter("p"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    terminal = Terminal()
    await show_progress(lambda: (0.5, "core 0 is starting"), terminal)
    assert terminal.getvalue() == ""
