"""How a test waits for what other tasks do."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop go on until something holds; the test's own timeout bounds it."""
    while not holds():
        await asyncio.sleep(0)
