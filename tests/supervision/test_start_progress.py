"""The bar is for people at a terminal: it follows the process that loads, and leaves nothing in a log."""

import asyncio
import io
from dataclasses import dataclass

from pyllm.supervision.start_progress import show_progress
from tests.waiting import until


@dataclass
class Process:
    progress: float = 0.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_terminal_sees_how_far_it_is() -> None:
    terminal, loading = Terminal(), Process()
    showing = asyncio.create_task(show_progress([Process(), loading], terminal))
    await asyncio.sleep(0)
    assert terminal.getvalue() == ""
    loading.progress = 0.25
    await until(lambda: "loading weights  25 %" in terminal.getvalue())
    loading.progress = 0.75
    await until(lambda: "loading weights  75 %" in terminal.getvalue())
    loading.progress = 1.0
    await showing


async def test_it_goes_with_its_task() -> None:
    showing = asyncio.create_task(show_progress([Process(0.5)], Terminal()))
    await asyncio.sleep(0)
    showing.cancel()
    await asyncio.wait({showing})
    assert showing.cancelled()


async def test_a_log_sees_nothing() -> None:
    log = io.StringIO()
    await show_progress([Process(0.5)], log)
    assert log.getvalue() == ""
