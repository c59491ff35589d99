"""Publishes the prefix cache's events as vLLM does: batches on a PUB socket, and again on a ROUTER after a loss.

A batch is `topic · sequence (8 bytes, big-endian) · payload`; the payload is made in Rust. Knows no subscriber.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator
from ipaddress import ip_address
from itertools import islice
from typing import Any

import zmq

from pyllm._rust import Scheduler
from pyllm.config.engine_settings import KVEventsConfig
from pyllm.errors import ConfigError
from pyllm.wire.listeners import claim_endpoint

MAX_KEPT_BYTES = 256 << 20  # of batches kept for replay
MAX_REPLAY_REQUESTS = 1000  # in the queue
BATCHES_PER_TURN = 64  # replayed per turn of the event loop: more would delay the next step
END_SEQUENCE = -1

Context = zmq.Context[zmq.Socket[bytes]]


@contextlib.contextmanager
def claim_addresses(config: KVEventsConfig) -> Generator[None, None, None]:
    """Hold the addresses that a publisher binds against other processes, also while its model still loads.

    Raises:
        ConfigError: another process has one of them.
    """
    published = config.kv_events_endpoint
    with contextlib.ExitStack() as claims:
        for address in (published if is_bound_address(published) else "", config.kv_events_replay_endpoint):
            claims.enter_context(claim_endpoint(address))
        yield


class EventPublisher:
    """The publisher of one core; must be made inside a running event loop.

    Its first batch, with sequence 0, says that nothing is cached. A subscriber that asks for batches from a sequence on
    gets them. If the first of them is not kept any more or never existed, it gets the whole cache as the latest batch,
    which begins with `AllBlocksCleared`.

    Raises:
        ConfigError: an address cannot be bound or connected to.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        context: Context,
        config: KVEventsConfig,
        *,
        rank: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._topic = config.kv_events_topic.encode()
        self._format: dict[str, Any] = {
            "rank": rank,
            "is_array": config.kv_events_layout == "array",
            "has_integer_hashes": config.kv_events_hashes == "int",
            "has_tokens": config.kv_events_tokens,
        }
        self._next_event = 0
        self._next_sequence = 0
        self._kept: deque[bytes] = deque()  # the batches before `_next_sequence`
        self._max_kept = config.kv_events_buffer_steps
        self._kept_bytes = 0
        self._replays: deque[tuple[bytes, int]] = deque()  # subscribers, and the sequence that each gets next
        self._latest_whole = (-1, b"")  # the number of the next event, and the whole cache
        self._publisher = _socket(context, zmq.PUB, config.kv_events_hwm, config.kv_events_endpoint)
        self._replay: zmq.Socket[bytes] | None = None
        if config.kv_events_replay_endpoint:
            # The queue has room for a whole replay to a slow subscriber.
            room = config.kv_events_buffer_steps + 1
            try:
                self._replay = _socket(context, zmq.ROUTER, room, config.kv_events_replay_endpoint)
            except ConfigError:
                self._publisher.close(0)
                raise
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._replay.fileno(), self._answer)
            self._loop.call_soon(self._answer)
        self._send(*self._whole())

    def publish(self) -> None:
        """Publish the events since the last call, if any; never waits."""
        batch = self._scheduler.event_batch(self._clock(), self._next_event, **self._format)
        if batch is not None:
            self._send(*batch)

    def close(self) -> None:
        """Close the sockets; published batches leave in the background."""
        if self._replay is not None and not self._replay.closed:
            self._loop.remove_reader(self._replay.fileno())
            self._replay.close(0)
        self._publisher.close(1000)

    def _whole(self) -> tuple[int, bytes]:
        if self._latest_whole[0] != self._next_event:
            batch = self._scheduler.event_batch(self._clock(), **self._format)
            assert batch is not None, "the whole cache is never nothing"
            self._latest_whole = batch
        return self._latest_whole

    def _send(self, next_event: int, payload: bytes) -> None:
        self._next_event = next_event
        self._kept.append(payload)
        self._kept_bytes += len(payload)
        while len(self._kept) > self._max_kept or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
        sequence = self._next_sequence.to_bytes(8, "big")
        self._next_sequence += 1
        self._publisher.send_multipart([self._topic, sequence, payload], zmq.NOBLOCK)

    def _answer(self) -> None:
        """Take requests and continue replays. It runs again while replays are left, as the descriptor signals once."""
        assert self._replay is not None
        if self._replay.closed:
            return
        with contextlib.suppress(zmq.Again):
            while len(self._replays) < MAX_REPLAY_REQUESTS:
                match self._replay.recv_multipart(zmq.NOBLOCK):
                    case [subscriber, b"", first] if len(first) == 8:
                        self._replays.append((subscriber, int.from_bytes(first, "big")))
                    case _:
                        pass  # The protocol has no answer to a malformed request.
        if self._replays:
            # A subscriber that is gone or does not read must ask again.
            with contextlib.suppress(zmq.ZMQError):
                self._go_on(*self._replays.popleft())
            self._loop.call_soon(self._answer)

    def _go_on(self, subscriber: bytes, sequence: int) -> None:
        """Send some batches to a subscriber from a sequence on, and queue it again unless these were the last."""
        self.publish()  # The whole cache must not contain unpublished events.
        oldest = self._next_sequence - len(self._kept)
        if not oldest <= sequence <= self._next_sequence:
            self._reply(subscriber, self._topic, self._next_sequence - 1, self._whole()[1])
            sequence = self._next_sequence
        end = min(sequence + BATCHES_PER_TURN, self._next_sequence)
        for number, payload in enumerate(islice(self._kept, sequence - oldest, end - oldest), sequence):
            self._reply(subscriber, self._topic, number, payload)
        if end == self._next_sequence:
            self._reply(subscriber, b"", END_SEQUENCE, b"")
        else:
            self._replays.append((subscriber, end))

    def _reply(self, subscriber: bytes, topic: bytes, sequence: int, payload: bytes) -> None:
        assert self._replay is not None
        frames = [subscriber, b"", topic, sequence.to_bytes(8, "big", signed=True), payload]
        self._replay.send_multipart(frames, zmq.NOBLOCK)


def _socket(context: Context, kind: int, high_water_mark: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, high_water_mark)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.RCVHWM, MAX_REPLAY_REQUESTS)
        socket.setsockopt(zmq.MAXMSGSIZE, 64)  # A replay request has 8 bytes.
    is_bound = kind == zmq.ROUTER or is_bound_address(address)
    try:
        socket.bind(address) if is_bound else socket.connect(address)
    except zmq.ZMQError as error:
        socket.close(0)
        verb = "bound" if is_bound else "connected to"
        raise ConfigError(f"{address!r} for KV events cannot be {verb}: {error}") from error
    return socket


def is_bound_address(address: str) -> bool:
    """Whether a publisher binds this address: in the cases of vLLM, and on loopback. It connects to any other."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback or ip_address(host).is_unspecified
    return not address.startswith("tcp://") or "*" in address or host == "localhost"
