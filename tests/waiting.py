"""How a test waits for what other tasks and processes do."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], pause: float = 0.0) -> None:
    """Let the event loop go on until something holds; the test's own timeout ends it if it never does.

    `pause` is in seconds, between two looks at what takes a processor to look at.
    """
    while not holds():
        await asyncio.sleep(pause)
