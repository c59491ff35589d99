import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zmq

from pyllm.errors import ConfigError
from pyllm.wire import curve, ipc
from pyllm.wire.messages import ClientMessage, CoreMessage, Heartbeat, Hello, Reply, Sampling, Submit

# A value within a request that is nested deeper than Python recurses.
DEEP = msgspec.msgpack.encode(Submit(1, 1, b"", 0, 1, Sampling(extra_args={"deep": 7}))).replace(
    b"\xa4deep\x07", b"\xa4deep" + b"\x91" * 200_000 + b"\x07"
)


class Inbox:
    """Keeps what an endpoint hands over, and wakes whoever waits for the next of it."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[tuple[bytes, object]] = asyncio.Queue()
        self.malformed: asyncio.Queue[tuple[bytes, str]] = asyncio.Queue()
        self.fail_on: object = None

    def on_message(self, identity: bytes, message: object) -> None:
        if message == self.fail_on:
            raise RuntimeError("this handler fails")
        self.messages.put_nowait((identity, message))

    def on_malformed(self, identity: bytes, text: str) -> None:
        self.malformed.put_nowait((identity, text))


class Pair:
    """A ROUTER and a DEALER, connected over a socket file."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.core, self.client = Inbox(), Inbox()
        self.disconnected = asyncio.Event()
        address = f"ipc://{folder}/socket"
        self.router: ipc.Endpoint[ClientMessage, CoreMessage] = ipc.Endpoint(
            ipc.bind(self.context, zmq.ROUTER, address), ClientMessage, self.core.on_message, self.core.on_malformed
        )
        self.raw = ipc.connect(self.context, address)
        self.dealer: ipc.Endpoint[CoreMessage, ClientMessage] = ipc.Endpoint(
            self.raw, CoreMessage, self.client.on_message, self.client.on_malformed, self.disconnected.set
        )

    def close(self) -> None:
        self.router.close()
        self.dealer.close()
        self.context.destroy(0)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


async def test_messages_arrive_both_ways(pair: Pair) -> None:
    assert pair.dealer.send(Hello(1), b"frame")
    identity, message = await pair.core.messages.get()
    assert message == Hello(1)
    assert pair.router.send(Reply(3, True, "yes"), identity=identity)
    assert await pair.client.messages.get() == (b"", Reply(3, True, "yes"))


async def test_frames_travel_behind_the_message(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    worker = ipc.bind(context, zmq.DEALER, f"ipc://{tmp_path}/worker")
    inbox = Inbox()
    core: ipc.Endpoint[CoreMessage, ClientMessage] = ipc.Endpoint(
        ipc.connect(context, f"ipc://{tmp_path}/worker"), CoreMessage, inbox.on_message, inbox.on_malformed
    )
    assert core.send(Hello(1), memoryview(b"plan"))
    assert worker.recv_multipart() == [b"\x93\xa5Hello\x01\xc2", b"plan"]
    core.close()
    worker.close(0)
    context.destroy(0)


async def test_a_handler_that_fails_delays_nobody_elses_message(pair: Pair) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    pair.core.fail_on = Heartbeat("", 0)
    for number in range(3):
        assert pair.dealer.send(Heartbeat("", number))
    assert [(await pair.core.messages.get())[1] for _ in range(2)] == [Heartbeat("", 1), Heartbeat("", 2)]
    assert [str(failure) for failure in failures] == ["this handler fails"]


async def test_burst_arrives_whole_and_in_order(pair: Pair) -> None:
    for number in range(500):
        assert pair.dealer.send(Heartbeat("", number))
    steps = [(await pair.core.messages.get())[1] for _ in range(500)]
    assert steps == [Heartbeat("", number) for number in range(500)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\x00\x01",
        b"\x92\xa5Hello\xa1x",
        b"\x92\xa4None\x01",
        b"\x00" * 1000,
        DEEP,
    ],
    ids=["empty", "bytes", "wrong-type", "unknown", "zeros", "deep"],
)
async def test_malformed_frame_is_reported_and_the_next_message_is_served(pair: Pair, garbage: bytes) -> None:
    pair.raw.send(garbage)
    _, text = await pair.core.malformed.get()
    assert text
    assert pair.dealer.send(Hello(1))
    assert (await pair.core.messages.get())[1] == Hello(1)


async def test_unknown_peer_raises(pair: Pair) -> None:
    with pytest.raises(ipc.PeerGoneError):
        pair.router.send(Heartbeat(), identity=b"nobody")


async def test_slow_peer_makes_send_return_false_instead_of_blocking(pair: Pair) -> None:
    assert pair.dealer.send(Hello(1))
    identity, _ = await pair.core.messages.get()
    # The client's endpoint is closed over the loop: it reads nothing until we yield, so its queues fill.
    frame = bytes(1 << 16)
    sent = 0
    while pair.router.send(Heartbeat(), frame, identity=identity):
        sent += 1
        assert sent < 10 * ipc.HIGH_WATER_MARK
    assert sent >= ipc.HIGH_WATER_MARK // 2
    for _ in range(sent):  # nothing of what was accepted is lost
        await pair.client.messages.get()


async def test_disconnect_is_noticed(pair: Pair) -> None:
    assert pair.dealer.send(Hello(1))
    await pair.core.messages.get()
    pair.router.close()
    await pair.disconnected.wait()


async def test_memory_endpoint_delivers_until_it_is_closed() -> None:
    inbox = Inbox()
    endpoint: ipc.MemoryEndpoint[CoreMessage, ClientMessage] = ipc.MemoryEndpoint()
    with pytest.raises(ipc.PeerGoneError):
        endpoint.send(Hello(1))
    endpoint.connect(inbox.on_message)
    assert endpoint.send(Hello(1))
    assert inbox.messages.get_nowait() == (b"", Hello(1))
    endpoint.close()
    with pytest.raises(ipc.PeerGoneError):
        endpoint.send(Hello(1))


async def test_curve_lets_in_the_clients_of_its_folder_and_nobody_else(tmp_path: Path) -> None:
    ours, strangers = tmp_path / "ours", tmp_path / "strangers"
    curve.generate(ours)
    curve.generate(strangers)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    authenticator = curve.authenticate(context, ours)
    inbox = Inbox()
    socket = ipc.bind(context, zmq.ROUTER, "tcp://127.0.0.1:0", curve.server_keys(ours))
    address = bytes(socket.last_endpoint).decode().rstrip("\0")
    router: ipc.Endpoint[ClientMessage, CoreMessage] = ipc.Endpoint(
        socket, ClientMessage, inbox.on_message, inbox.on_malformed
    )
    stranger_keys = curve.CurveKeys(
        curve.client_keys(strangers).public, curve.client_keys(strangers).secret, curve.client_keys(ours).server
    )
    stranger = ipc.connect(context, address, stranger_keys)
    stranger.send_multipart([b"\x92\xa5Hello\x63"])
    friend = ipc.connect(context, address, curve.client_keys(ours))
    friend.send_multipart([b"\x92\xa5Hello\x01"])
    assert (await inbox.messages.get())[1] == Hello(1)
    assert inbox.messages.empty()
    stranger.close(0)
    friend.close(0)
    router.close()
    authenticator.stop()
    context.destroy(0)


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    curve.generate(tmp_path / "keys")
    assert (tmp_path / "keys" / "server.key_secret").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="holds keys already"):
        curve.generate(tmp_path / "keys")
    with pytest.raises(ConfigError, match="pyllm keygen"):
        curve.server_keys(tmp_path / "nowhere")


async def test_the_event_loop_has_a_turn_between_two_large_messages(pair: Pair) -> None:
    assert pair.dealer.send(Hello(1))
    identity, _ = await pair.core.messages.get()
    for number in range(3):
        assert pair.router.send(Reply(number, True, bytes(ipc.BYTES_PER_TURN)), identity=identity)
    for _ in range(3):
        await pair.client.messages.get()
        assert pair.client.messages.empty()
