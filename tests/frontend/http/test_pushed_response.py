"""The channel sends at once where it can, waits where it must, and gives a reader up that takes nothing."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from pyllm.errors import RequestError
from pyllm.frontend.http.pushed_response import CONNECTION, Channel, Connection, push
from pyllm.frontend.http.write_batcher import WriteBatcher
from tests.waiting import until


class Socket:
    """A server's `send` and `receive`. It takes messages at once while `open`, as uvicorn does."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.taken: list[dict[str, Any]] = []
        self.disconnected = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        if not self.open.is_set():
            await self.open.wait()
        self.taken.append(message)
        if message["type"] == "http.response.body" and not message["more_body"]:
            self.disconnected.set()

    async def receive(self) -> dict[str, str]:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.taken)


class Answer:
    """Does nothing but remember."""

    def __init__(self) -> None:
        self.channel: Channel
        self.calls: list[str] = []

    def begin(self, channel: Channel) -> None:
        self.channel = channel
        self.calls.append("begin")

    def drained(self) -> None:
        self.calls.append("drained")

    def end(self) -> None:
        self.calls.append("end")


class Transport:
    """What a server writes to; `buffered` bytes wait in it."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.buffered = 0
        self.closing = False

    def write(self, data: bytes) -> None:
        self.taken.append(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.closing


def wired(transport: Transport) -> dict[str, Any]:
    return {CONNECTION: Connection(cast("asyncio.WriteTransport", transport), WriteBatcher())}


async def serve(answer: Any, socket: Socket, patience: float = 60.0, **scope: Any) -> "asyncio.Task[None]":
    given: Any = {"type": "http", **scope}, socket.receive, socket.send
    task = asyncio.create_task(push(answer, *given, patience=patience))
    await asyncio.sleep(0)
    return task


async def test_an_open_socket_takes_everything_at_once() -> None:
    answer, socket = Answer(), Socket()
    task = await serve(answer, socket)
    answer.channel.start(200, b"text/plain", (b"x", b"y"))
    answer.channel.write(b"a")
    assert not answer.channel.blocked
    answer.channel.finish(b"b")
    assert socket.taken == [
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain"), (b"x", b"y")]},
        {"type": "http.response.body", "body": b"a", "more_body": True},
        {"type": "http.response.body", "body": b"b", "more_body": False},
    ]
    await task
    assert answer.calls == ["begin", "end"]


async def test_a_slow_socket_blocks_the_channel_until_it_has_taken_everything() -> None:
    answer, socket = Answer(), Socket()
    task = await serve(answer, socket)
    socket.open.clear()
    answer.channel.start(200, b"text/plain")
    answer.channel.write(b"a")
    answer.channel.write(b"b")
    await asyncio.sleep(0)
    assert answer.channel.blocked
    assert socket.taken == []
    socket.open.set()
    await until(lambda: not answer.channel.blocked)
    assert answer.calls == ["begin", "drained"]
    assert socket.body == b"ab"
    answer.channel.finish(b"c")
    await task
    assert socket.body == b"abc"


async def test_parts_of_a_body_go_to_the_transport_as_chunks() -> None:
    answer, socket, transport = Answer(), Socket(), Transport()
    task = await serve(answer, socket, **wired(transport))
    answer.channel.start(200, b"text/plain")
    answer.channel.write(b"a" * 15, b"before", b"after")
    answer.channel.write(b"a" * 5000)
    await asyncio.sleep(0)
    assert transport.taken == [b"1a\r\nbefore" + b"a" * 15 + b"after\r\n", b"1388\r\n" + b"a" * 5000 + b"\r\n"]
    answer.channel.finish(b"b")
    await task
    assert (socket.body, [message["type"][14:] for message in socket.taken]) == (b"b", ["start", "body"])


async def test_what_waits_in_the_transport_sends_the_next_part_the_servers_way() -> None:
    answer, socket, transport = Answer(), Socket(), Transport()
    task = await serve(answer, socket, **wired(transport))
    answer.channel.start(200, b"text/plain")
    transport.buffered = 1
    socket.open.clear()
    answer.channel.write(b"a")
    transport.buffered = 0
    answer.channel.write(b"b")
    assert answer.channel.blocked
    socket.open.set()
    await until(lambda: not answer.channel.blocked)
    answer.channel.write(b"c")
    answer.channel.finish(b"")
    await task
    assert (socket.body, transport.taken) == (b"ab", [b"1\r\nc\r\n"])


async def test_the_end_of_a_body_comes_after_its_parts() -> None:
    answer, socket, transport = Answer(), Socket(), Transport()
    taken: list[Any] = []
    socket.taken = transport.taken = taken
    task = await serve(answer, socket, **wired(transport))
    answer.channel.write(b"a")
    answer.channel.write(b"b")
    answer.channel.finish(b"c")
    assert taken == [b"1\r\na\r\n", b"1\r\nb\r\n", {"type": "http.response.body", "body": b"c", "more_body": False}]
    await task


async def test_a_transport_that_closes_is_written_nothing() -> None:
    answer, socket, transport = Answer(), Socket(), Transport()
    task = await serve(answer, socket, **wired(transport))
    answer.channel.start(200, b"text/plain")
    transport.closing = True
    answer.channel.write(b"a")
    socket.disconnected.set()
    await task
    assert transport.taken == []


async def test_a_disconnect_ends_the_answer() -> None:
    answer, socket = Answer(), Socket()
    task = await serve(answer, socket)
    socket.open.clear()
    answer.channel.start(200, b"text/plain")
    socket.disconnected.set()
    await task
    assert answer.calls == ["begin", "end"]
    assert socket.taken == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_reader_that_takes_nothing_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    answer, socket = Answer(), Socket()
    task = await serve(answer, socket, patience=0.0)
    socket.open.clear()
    answer.channel.write(b"a")
    await task
    assert (answer.calls, answer.channel.stalled) == (["begin", "end"], True)
    assert "read nothing" in caplog.text


async def test_a_server_that_ends_cancels_the_answer() -> None:
    answer, socket = Answer(), Socket()
    task = await serve(answer, socket)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answer.calls == ["begin", "end"]


async def test_what_cannot_begin_is_raised_before_anything_is_sent() -> None:
    class Failing(Answer):
        def begin(self, channel: Channel) -> None:
            raise RequestError("no")

    answer, socket = Failing(), Socket()
    task = await serve(answer, socket)
    with pytest.raises(RequestError):
        await task
    assert (answer.calls, socket.taken) == (["end"], [])


@pytest.mark.parametrize("suspensions", [1, 2, 5])
async def test_a_send_may_suspend_more_than_once(suspensions: int) -> None:
    turns: list[Callable[[], None]] = []

    class Halting(Socket):
        async def send(self, message: dict[str, Any]) -> None:
            for _ in range(suspensions):
                turn = asyncio.get_running_loop().create_future()
                turns.append(lambda turn=turn: turn.set_result(None))
                await turn
                await asyncio.sleep(0)
            await super().send(message)

    answer, socket = Answer(), Halting()
    task = await serve(answer, socket)
    answer.channel.finish(b"a")
    while not task.done():
        while turns:
            turns.pop()()
        await asyncio.sleep(0)
    assert socket.body == b"a"
