"""A link to a process that may be restarted: each connection has a new socket with a fresh identity.

Queues messages for a slow peer in order. Knows neither the messages nor when to try again.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import zmq

from pyllm.wire.ipc import MalformedHandler, MessageHandler, PeerGoneError, Sender

Received = TypeVar("Received")
Sent = TypeVar("Sent")

# Makes the sending half, given handlers for messages, for malformed frames and for the end of the connection.
Connect = Callable[[MessageHandler[Received], MalformedHandler, Callable[[], None]], Sender[Sent]]

logger = logging.getLogger(__name__)


class Link(Generic[Received, Sent]):
    """A link with at most one socket. `open` makes one and closes the one before, dropping its messages of both ways.

    `on_lost` is called once for each socket whose connection ends, after it is closed.
    """

    def __init__(
        self,
        on_message: Callable[[Received], None],
        on_malformed: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_malformed = on_malformed
        self._on_lost = on_lost
        self._endpoint: Sender[Sent] | None = None
        self._number = 0  # of the socket: messages of an older one are ignored
        self._unsent: deque[Sent] = deque()

    @property
    def is_open(self) -> bool:
        """Whether there is a socket; its peer may already be gone."""
        return self._endpoint is not None

    @property
    def num_unsent(self) -> int:
        """Messages that a slow peer has not taken yet."""
        return len(self._unsent)

    def open(self, connect: Connect[Received, Sent]) -> None:
        """Make a new socket. If that fails, the link is closed, as after a loss, but `on_lost` is not called."""
        self.close()
        number = self._number
        try:
            self._endpoint = connect(
                partial(self._receive, number), partial(self._malformed, number), partial(self._lose, number)
            )
        except zmq.ZMQError as error:  # such as no file descriptor left
            logger.warning("no socket could be made: %s", error)

    def post(self, message: Sent) -> None:
        """Send a message after those not sent yet; without a socket it is dropped."""
        if self._endpoint is not None and (self._unsent or not self._send(message)):
            self._unsent.append(message)

    def flush(self) -> None:
        """Send unsent messages, as many as the peer takes now."""
        while self._unsent:
            message = self._unsent.popleft()
            if not self._send(message):
                self._unsent.appendleft(message)
                return

    def close(self, linger: float = 0.0) -> None:
        """Close the socket; messages queued in it get at most `linger` seconds to leave in the background."""
        self._number += 1
        endpoint, self._endpoint = self._endpoint, None
        self._unsent.clear()
        if endpoint is not None:
            endpoint.close(linger)

    def _send(self, message: Sent) -> bool:
        """Whether the message is done with: it was sent, or there is no peer."""
        if self._endpoint is None:
            return True
        number = self._number
        try:
            return self._endpoint.send(message)
        except PeerGoneError:
            self._lose(number)
            return True

    def _receive(self, number: int, identity: bytes, message: Received) -> None:
        del identity
        if number == self._number:
            self._on_message(message)

    def _malformed(self, number: int, identity: bytes, text: str) -> None:
        del identity
        if number == self._number:
            self._on_malformed(text)

    def _lose(self, number: int) -> None:
        if number == self._number:
            self.close()
            self._on_lost()
