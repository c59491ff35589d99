"""The bar is for people at a terminal: it follows the process that loads, and leaves nothing in a log."""

import asyncio
import io

from pyllm.supervision.start_progress import show_progress
from tests.waiting import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_terminal_sees_how_far_it_is() -> None:
    terminal, progress = Terminal(), [0.0]
    showing = asyncio.create_task(show_progress(lambda: progress[0], terminal))
    await asyncio.sleep(0)
    assert terminal.getvalue() == ""
    progress[0] = 0.25
    await until(lambda: "loading weights  25 %" in terminal.getvalue())
    progress[0] = 0.75
    await until(lambda: "loading weights  75 %" in terminal.getvalue())
    assert last_line(terminal) != ""
    progress[0] = 1.0
    await showing
    assert last_line(terminal) == ""


async def test_it_goes_with_its_task() -> None:
    terminal = Terminal()
    showing = asyncio.create_task(show_progress(lambda: 0.5, terminal))
    await asyncio.sleep(0)
    assert last_line(terminal) != ""
    showing.cancel()
    await asyncio.wait({showing})
    assert showing.cancelled()
    assert last_line(terminal) == ""


def last_line(terminal: Terminal) -> str:
    """What was written last over what stood there."""
    return terminal.getvalue().rstrip("\r").rpartition("\r")[2].strip()


async def test_a_log_sees_nothing() -> None:
    log = io.StringIO()
    await show_progress(lambda: 0.5, log)
    assert log.getvalue() == ""
