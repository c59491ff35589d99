"""A server that starts late is waited for."""

import asyncio

from pyllm.bench.endpoint import Endpoint, find_model, wait_until_ready
from tests.bench.scripted_server import scripted_server


async def test_a_server_that_starts_late_is_waited_for() -> None:
    async with scripted_server() as server:
        there = Endpoint(server.address)
    waiting = asyncio.create_task(wait_until_ready(there, 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    async with scripted_server(port=int(there.base_url.rpartition(":")[2])):
        await waiting
        assert (await find_model(there)).model == "scripted"


async def test_waiting_ends_without_a_server() -> None:
    await wait_until_ready(Endpoint("http://127.0.0.1:1"), 0.01)
