"""What children write to stderr: its end is kept, and every line goes on to this process's own stderr.

Nothing here ever waits for who reads: a thread writes, and what it cannot keep up with is dropped and counted.
"""

import atexit
import contextlib
import functools
import os
import select
import threading
from collections import deque
from collections.abc import Callable

# Bytes of one child's stderr that are kept, and of a line that is passed on in one piece.
LOG_BYTES = 64 << 10
# Bytes that wait for a slow reader of our own stderr.
MAX_WAITING = 1 << 20
# Bytes that are read of one child at once, so that none keeps the event loop from the others.
READ_BYTES = 64 << 10
# Seconds that the last lines get to leave when the process ends.
LAST_LINES_PATIENCE = 2.0


class ChildLog:
    """The parent's end of a pipe that is a child's stderr. `forward` is handed whole lines."""

    def __init__(self, descriptor: int, forward: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._forward = forward
        self._kept = bytearray()
        self._unfinished = b""

    @property
    def tail(self) -> bytes:
        """The last 64 KiB that were written."""
        return bytes(self._kept)

    def read(self) -> bool:
        """Take what is there. False: nobody is left who writes."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        self._kept += data
        del self._kept[:-LOG_BYTES]
        whole, line_end, self._unfinished = (self._unfinished + data).rpartition(b"\n")
        if len(self._unfinished) > LOG_BYTES:
            line_end, self._unfinished = self._unfinished + b"\n", b""
        if line_end:
            self._forward(whole + line_end)
        return bool(data)

    def close(self) -> None:
        """Take the rest, which a descendant that lives on cannot prolong, and close the pipe."""
        for _ in range(MAX_WAITING // READ_BYTES):
            if not self.read():
                break
        if self._unfinished:
            self._forward(self._unfinished + b"\n")
            self._unfinished = b""
        os.close(self.descriptor)


class LineWriter:
    """Writes to a descriptor by a thread of its own, in the order of the calls; also a stream for `logging`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0  # that wait, or are being written
        self._num_dropped = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_forever, name="stderr", daemon=True).start()

    def forward(self, lines: bytes) -> None:
        """Have whole lines written; dropped if 1 MiB wait already."""
        with self._changed:
            if self._num_bytes + len(lines) > MAX_WAITING:
                self._num_dropped += len(lines)
                return
            self._waiting.append(lines)
            self._num_bytes += len(lines)
            self._changed.notify_all()

    def write(self, text: str) -> None:
        """As a text stream has it."""
        self.forward(text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """As a text stream has it, without waiting."""

    def finish(self, seconds: float = LAST_LINES_PATIENCE) -> None:
        """Wait at most so long until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_bytes, seconds)

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = b"".join(self._waiting)
                self._waiting.clear()
                num_bytes = len(data)
                if self._num_dropped:
                    data += b"pyllm: stderr is read too slowly: %d bytes of it were dropped\n" % self._num_dropped
                    self._num_dropped = 0
            with contextlib.suppress(OSError):  # Nobody reads: there is nobody to tell.
                _write_all(self._descriptor, data)
            with self._changed:
                self._num_bytes -= num_bytes
                self._changed.notify_all()


@functools.cache
def stderr() -> LineWriter:
    """The one writer of this process's stderr; what it holds is written when the process ends."""
    writer = LineWriter(2)
    atexit.register(writer.finish)
    return writer


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # Whoever started us shares a descriptor that does not block.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
