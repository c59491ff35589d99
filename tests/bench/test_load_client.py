"""A request's time is that of its write, also where many requests are sent in one turn of the loop."""

import asyncio
import socket
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from pyllm.bench.load_client import LoadClient

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"

Run = Callable[[Coroutine[None, None, None]], None]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_request_is_written_where_its_time_is_noted(run: Run) -> None:
    """Its bytes are in the server's socket before anything else of the same turn runs, so nothing delays them."""
    run(_sends())


async def _sends() -> None:
    times = iter(range(9))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        LoadClient(f"http://127.0.0.1:{listener.getsockname()[1]}", clock=lambda: float(next(times))) as client,
    ):
        await client.open(1)
        server, _ = listener.accept()
        server.setblocking(False)
        received: list[bytes] = []
        sending = asyncio.create_task(client.send(REQUEST))
        asyncio.get_running_loop().call_soon(lambda: received.append(server.recv(1024)))
        await asyncio.sleep(0)
        assert received == [REQUEST]
        server.sendall(ANSWER)
        exchange = await sending
        server.close()
    assert (exchange.status, exchange.failure, exchange.sent) == (204, "", 0.0)
