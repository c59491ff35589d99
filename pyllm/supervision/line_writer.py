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

# Bytes in the queue for a slow reader; further lines are dropped and counted.
MAX_WAITING = 1 << 20
# Seconds to write the last lines when the process ends.
LAST_LINES_PATIENCE = 2.0


class LineWriter:
    """Writes lines to a descriptor: at once if that does not block, else by a thread. Also a stream for `logging`.

    A reader that has stopped reading must not block the event loops that log.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0  # queued, or being written by the thread
        self._num_dropped = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def forward(self, lines: bytes) -> None:
        """Write or queue whole lines; they are dropped if 1 MiB is queued already."""
        with self._changed:
            # A pipe takes up to PIPE_BUF bytes atomically, or polls as not writable.
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
        """Write text, for use as a text stream."""
        self.forward(text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Do nothing: text streams have this method."""

    def finish(self, seconds: float = LAST_LINES_PATIENCE) -> None:
        """Wait until everything is written, at most `seconds`."""
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
    """The only writer of this process's stderr; queued lines are written when the process ends."""
    writer = LineWriter(2)
    atexit.register(writer.finish)
    return writer


def end_process(code: int) -> NoReturn:
    """End this process once all output is written, without Python's finalization, which crashes beside library threads.

    `atexit` functions are not called.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # It has no reader, or is closed.
            stream.flush()
    stderr().finish()
    os._exit(code)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # Without a reader the error cannot be reported.
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # The process that started us shares a non-blocking descriptor.
                poll = select.poll()
                poll.register(descriptor, select.POLLOUT)
                poll.poll()
