"""The sending half of an exchange that has no client: what is sent becomes a record of the shared state."""

import asyncio

from litestar.types import Message

from pyllm.frontend.shared.client import Shared


class Recorder:
    """An ASGI `send` that never waits. `over` is done once the answer is complete.

    Kept are successes that are complete: a stream that ends with an error event, which has no id where the others
    have, may be asked for again.
    """

    def __init__(self, shared: Shared, run: int) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shared = shared
        self._run = run
        self._status = 0
        self._has_ids = False
        self._last = b""

    async def send(self, message: Message) -> None:
        """Record a part of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._shared.start(self._run, self._status, tuple((name, value) for name, value in message["headers"]))
        elif message["type"] == "http.response.body" and not self.over.done():
            if body := message["body"]:
                self._has_ids = self._has_ids or body.startswith(b"id: ")
                self._last = body
                self._shared.append(self._run, body)
            if not message.get("more_body", False):
                self._finish(keep=200 <= self._status < 300 and not self._ends_with_error)

    def close(self) -> None:
        """Nothing follows; an answer that is not complete is not kept."""
        if not self.over.done():
            self._finish(keep=False)

    @property
    def _ends_with_error(self) -> bool:
        block = self._last.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
        return self._has_ids and not block.startswith(b"id: ")

    def _finish(self, *, keep: bool) -> None:
        self.over.set_result(None)
        self._shared.finish(self._run, keep)
