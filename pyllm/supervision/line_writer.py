"""This process's stderr, shared with its children's output: whole lines, in order, without ever blocking.

Knows neither log formats nor children.
"""

import atexit
import contextlib
import functools
import os
import select
import sys
import threading
from collections import deque
from typing import NoReturn

# Bytes that wait for who reads too slowly; what comes then is dropped and counted.
MAX_WAITING = 1 << 20
# Seconds that the last lines get to leave when the process ends.
LAST_LINES_PATIENCE = 2.0


class LineWriter:
    """Writes lines to a descriptor: at once where that does not block, else by a thread. A stream for `logging`, too.

    A reader that has stopped reading must not stop the event loops that log.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0  # that wait, or are being written by the thread
        self._num_dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def forward(self, lines: bytes) -> None:
        """Write whole lines, or have them written; they are dropped if 1 MiB waits already."""
        with self._changed:
            # So many bytes a pipe takes as one, or says that it cannot take them.
            if not self._num_bytes and len(lines) <= select.PIPE_BUF and self._writable.poll(0):
                _write(self._descriptor, lines)
            else:
                if self._num_bytes + len(lines) > MAX_WAITING:
                    self._num_dropped += len(lines)
                else:
                    self._waiting.append(lines)
                    self._num_bytes += len(lines)
                self._changed.notify_all()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._write_forever, name="stderr", daemon=True)
                    self._thread.start()

    def write(self, text: str) -> None:
        """As a text stream has it."""
        self.forward(text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """As a text stream has it, without waiting."""

    def finish(self, seconds: float = LAST_LINES_PATIENCE) -> None:
        """Wait at most so long until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._num_bytes or self._num_dropped), seconds)

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._num_dropped)
                data = b"".join(self._waiting)
                self._waiting.clear()
                if self._num_dropped:
                    note = b"pyllm: stderr is read too slowly, %d bytes were dropped here\n" % self._num_dropped
                    data += note
                    self._num_bytes += len(note)
                    self._num_dropped = 0
                num_bytes = len(data)
            _write(self._descriptor, data)
            with self._changed:
                self._num_bytes -= num_bytes
                self._changed.notify_all()


@functools.cache
def stderr() -> LineWriter:
    """The one writer of this process's stderr; what waits is written when the process ends."""
    writer = LineWriter(2)
    atexit.register(writer.finish)
    return writer


def end_process(code: int) -> NoReturn:
    """End this process at once, when all is written: to finalize Python while threads of libraries run is a crash.

    What is registered to be called at the end is not called.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # Nobody reads, or it is closed.
            stream.flush()
    stderr().finish()
    os._exit(code)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # Nobody reads: there is nobody to tell.
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # Whoever started us shares a descriptor that does not block.
                poll = select.poll()
                poll.register(descriptor, select.POLLOUT)
                poll.poll()
