"""A scripted server beside the test, for commands that run their own event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from tests.bench.scripted_server import Script, ScriptedServer, scripted_server

StartServer = Callable[[Script], ScriptedServer]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts scripted servers on a thread's loop; they end with the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    def start(script: Script) -> ScriptedServer:
        entering = stack.enter_async_context(scripted_server(script))
        return asyncio.run_coroutine_threadsafe(entering, loop).result()

    try:
        yield start
    finally:
        asyncio.run_coroutine_threadsafe(_end(stack), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(stack: AsyncExitStack) -> None:
    await stack.aclose()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
