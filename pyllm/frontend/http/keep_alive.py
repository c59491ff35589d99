"""Sends comments in silent streams, so that proxies keep them open: one sweep for all streams.

Does not know what else a stream sends.
"""

import asyncio
from typing import Protocol

COMMENT = b": keep-alive\n\n"
# A stream is silent after this many sweeps in a row, so a comment comes after at most one interval without a byte.
SILENT_SWEEPS = 3
# Comments that are written in one turn of the event loop.
COMMENTS_PER_TURN = 128


class Listener(Protocol):
    """An open stream."""

    def tick(self) -> bool:
        """Count a sweep; gives whether nothing was sent in the last `SILENT_SWEEPS`."""

    def send_comment(self) -> None:
        """Send a comment."""


class KeepAlive:
    """Sweeps the open streams as long as there are any. `interval` is in seconds; 0: no comments."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._open: dict[Listener, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Listener) -> None:
        """Follow a stream from now on."""
        if self._interval:
            self._open[stream] = None
            self._wait()

    def remove(self, stream: Listener) -> None:
        """Forget a stream."""
        self._open.pop(stream, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sweep(self) -> None:
        """Send comments where they are due. Runs by itself, four times an interval."""
        self._timer = None
        self._send([stream for stream in self._open if stream.tick()])
        if self._open:
            self._wait()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval / (SILENT_SWEEPS + 1), self.sweep)

    def _send(self, silent: list[Listener]) -> None:
        for stream in silent[:COMMENTS_PER_TURN]:
            if stream in self._open:
                stream.send_comment()
        if rest := silent[COMMENTS_PER_TURN:]:
            asyncio.get_running_loop().call_soon(self._send, rest)
