"""One typed endpoint over one ZeroMQ socket, driven by the event loop, and its in-memory twin.

Encodes, decodes and never blocks. Knows neither the meaning of messages nor the roles of processes.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from pyllm.wire.curve import CurveKeys

# A prompt of a million tokens is 4 MB; no legitimate message is larger than this.
MAX_MESSAGE_BYTES = 64 << 20
# Messages queued for one peer before `send` reports that it is slow.
HIGH_WATER_MARK = 1000
# Limits of messages and bytes handled in one turn of the event loop, so that a flood does not starve other tasks.
# Log-probabilities of a whole vocabulary come in large messages, which are slow to handle.
MESSAGES_PER_TURN = 64
BYTES_PER_TURN = 1 << 20

Received = TypeVar("Received")
Sent = TypeVar("Sent")
Sent_contra = TypeVar("Sent_contra", contravariant=True)


class PeerGoneError(Exception):
    """The addressed client is not connected any more."""


# Called with the sender's identity (empty except on a ROUTER), and the message or the decoding error.
MessageHandler = Callable[[bytes, Received], None]
MalformedHandler = Callable[[bytes, str], None]


class Sender(Protocol[Sent_contra]):
    """The sending half that `Endpoint` and `MemoryEndpoint` share."""

    def send(self, message: Sent_contra, *frames: Any, identity: bytes = b"") -> bool: ...

    def close(self, linger: float = 0.0) -> None: ...


class Endpoint(Generic[Received, Sent]):
    """A socket that calls `on_message` for each decoded message; must be made inside a running event loop.

    The socket's file descriptor is edge-triggered and a send may consume the edge, so every send looks for input again.
    `receives` is the message type or union. A frame that does not decode only results in a call of `on_malformed`.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receives: Any,
        on_message: MessageHandler[Received],
        on_malformed: MalformedHandler,
        on_disconnect: Callable[[], None] | None = None,
    ) -> None:
        import asyncio  # Not at the top: a worker binds sockets, and has no event loop.

        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()
        self._on_message = on_message
        self._on_malformed = on_malformed
        self._on_disconnect = on_disconnect
        self._has_identity = socket.type == zmq.ROUTER
        self._drain_scheduled = False
        # This comes first, as it may fail: a descriptor added to the event loop must stay open.
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) if on_disconnect else None
        self._loop.add_reader(socket.fileno(), self._drain)
        if self._monitor is not None:
            self._loop.add_reader(self._monitor.fileno(), self._read_monitor)
            self._loop.call_soon(self._read_monitor)  # The descriptor signals changes only after a first look.
        self._schedule_drain()

    def send(self, message: Sent, *frames: Any, identity: bytes = b"") -> bool:
        """Queue a message and its raw frames (buffers). False: the peer is slow and its queue is full.

        Raises:
            PeerGoneError: no client with this identity is connected.
        """
        parts = [self._encoder.encode(message), *frames]
        if self._has_identity:
            parts.insert(0, identity)
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.ENOTSOCK):
                raise PeerGoneError(identity.hex()) from None
            raise
        self._schedule_drain()
        return True

    def close(self, linger: float = 0.0) -> None:
        """Close the socket, waiting at most `linger` seconds in the background for queued messages to leave."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self._socket.close(int(linger * 1000))

    def _schedule_drain(self) -> None:
        if not self._drain_scheduled:
            self._drain_scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_scheduled = False
        num_bytes = 0
        for _ in range(MESSAGES_PER_TURN):
            if self._socket.closed:
                return
            if num_bytes > BYTES_PER_TURN:
                break
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            num_bytes += sum(map(len, parts))
            try:
                self._handle(parts)
            except Exception:
                self._schedule_drain()  # The descriptor signals the messages behind this one only once.
                raise
        self._schedule_drain()

    def _handle(self, parts: list[bytes]) -> None:
        identity = parts.pop(0) if self._has_identity else b""
        try:
            message = self._decoder.decode(parts[0] if parts else b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._on_malformed(identity, str(error))
        else:
            self._on_message(identity, message)

    def _read_monitor(self) -> None:
        while self._monitor is not None and self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            if event["event"] == zmq.EVENT_DISCONNECTED and self._on_disconnect is not None:
                self._on_disconnect()


class MemoryEndpoint(Generic[Received, Sent]):
    """The in-process twin of `Endpoint`: a sent message is handled by the peer before `send` returns.

    It takes no frames: these are for workers, which never use it.
    """

    def __init__(self) -> None:
        self._peer: MessageHandler[Sent] | None = None

    def connect(self, peer: MessageHandler[Sent]) -> None:
        """Deliver to `peer` from now on."""
        self._peer = peer

    def send(self, message: Sent, *frames: Any, identity: bytes = b"") -> bool:
        """Hand the message over. Raises PeerGoneError after `close`."""
        assert not frames
        if self._peer is None:
            raise PeerGoneError(identity.hex())
        self._peer(identity, message)
        return True

    def close(self, linger: float = 0.0) -> None:
        """Stop delivering messages."""
        del linger
        self._peer = None


def bind(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str, keys: CurveKeys | None = None
) -> zmq.Socket[bytes]:
    """A bound socket: `zmq.ROUTER` for clients, `zmq.DEALER` for one worker. `tcp://host:0` takes a free port."""
    socket = _socket(context, kind)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if keys is not None:
        socket.curve_server = True
        socket.curve_secretkey, socket.curve_publickey = keys.secret, keys.public
    socket.bind(address)
    return socket


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str, keys: CurveKeys | None = None) -> zmq.Socket[bytes]:
    """A DEALER with a fresh random identity, connected to `address`."""
    socket = _socket(context, zmq.DEALER)
    if keys is not None:
        socket.curve_secretkey, socket.curve_publickey = keys.secret, keys.public
        socket.curve_serverkey = keys.server
    socket.connect(address)
    return socket


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    return socket
