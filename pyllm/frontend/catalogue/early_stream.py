"""The beginning of a stream whose model is still being loaded: its head, and comments that keep it open.

Knows of the APIs only the shape of an error event.
"""

from typing import Any

from pyllm.frontend.answers.answer_format import EVENTS
from pyllm.frontend.edge.error_answer import is_anthropics, render_error
from pyllm.frontend.http.asgi import Message, Send
from pyllm.frontend.http.failure import Failure
from pyllm.frontend.http.keep_alive import COMMENT

_HEAD: dict[str, Any] = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", EVENTS), (b"cache-control", b"no-cache")],
}


class EarlyStream:
    """An ASGI `send` for the model's own answer, whose head may have been sent. An error then becomes an event."""

    def __init__(self, path: str, send: Send) -> None:
        self.is_started = False
        self._path = path
        self._send = send
        self._is_error = False

    async def comment(self) -> None:
        """Send the head, once, and a comment."""
        if not self.is_started:
            self.is_started = True
            await self._send(_HEAD)
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})

    async def fail(self, failure: Failure, request_id: str) -> None:
        """End the stream with an error event."""
        _, body = render_error(self._path, failure, request_id)
        await self._send({"type": "http.response.body", "body": _event(self._path, body), "more_body": False})

    async def send(self, message: Message) -> None:
        """Pass a message of the model's answer on."""
        if not self.is_started:
            await self._send(message)
            return
        if message["type"] == "http.response.start":
            self._is_error = message["status"] != 200
            return
        if self._is_error and message.get("body"):
            message = {**message, "body": _event(self._path, message["body"])}
        await self._send(message)


def _event(path: str, body: bytes) -> bytes:
    """An error's body as an event. Anthropic's events have names."""
    name = b"event: error\n" if is_anthropics(path) else b""
    return name + b"data: " + body + b"\n\n"
