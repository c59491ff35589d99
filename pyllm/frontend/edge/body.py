"""Receives request bodies, bounded in size and time."""

import asyncio

from pyllm.errors import DeadlineError
from pyllm.frontend.http.asgi import Message, Receive
from pyllm.frontend.http.failure import BodyTooLargeError, ClientGoneError

# Seconds in which a body has to make some progress.
BODY_PATIENCE = 60.0


class BoundedBody:
    """Stands before an ASGI `receive` until the body has come.

    Raises:
        BodyTooLargeError: it is larger than `limit` bytes.
        DeadlineError: nothing came for `patience` seconds.
        ClientGoneError: the client left before it had come.
    """

    __slots__ = ("_is_complete", "_limit", "_patience", "_receive", "_size", "stalled")

    def __init__(self, receive: Receive, limit: int, patience: float) -> None:
        self.stalled = False
        self._receive = receive
        self._limit = limit
        self._patience = patience
        self._size = 0
        self._is_complete = False

    async def receive(self) -> Message:
        """The next part of the body; after the last part, the message that the client has disconnected."""
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._patience):
                message = await self._receive()
        except TimeoutError:
            self.stalled = True
            raise DeadlineError(f"Nothing came of the request's body for {self._patience:g} s.") from None
        if message["type"] != "http.request":
            raise ClientGoneError("The client left before the request's body had come.")
        self._size += len(message["body"])
        check_body_size(self._size, self._limit)
        self._is_complete = not message.get("more_body", False)
        return message


def check_body_size(size: int, limit: int) -> None:
    """Refuse a body that is too large, whether announced or received.

    Raises:
        BodyTooLargeError: the text has the limit.
    """
    if size > limit:
        text = f"The body has more than {limit} bytes, which is the most this server takes (--max-request-body-bytes)."
        raise BodyTooLargeError(text)
