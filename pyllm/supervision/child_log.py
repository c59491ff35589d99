"""A child's stderr: passes every line on, and keeps the end. Does not know the target of the lines."""

import os
from collections.abc import Callable

# Bytes to keep, and the greatest length of a line that is passed on in one piece.
LOG_BYTES = 64 << 10
# Bytes per read, so that no child blocks the event loop for the others.
READ_BYTES = 64 << 10
# Reads at the end of a child, so that output of a surviving descendant does not prolong the end.
MAX_LAST_READS = 16


class ChildLog:
    """The parent's end of a pipe from a child's stderr. `forward` gets whole lines."""

    def __init__(self, descriptor: int, forward: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._forward = forward
        self._kept = bytearray()
        self._unfinished = b""

    @property
    def tail(self) -> bytes:
        """The last 64 KiB of output."""
        return bytes(self._kept)

    def read(self) -> bool:
        """Read available output. False: the pipe has no writer any more."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        self._kept += data
        del self._kept[:-LOG_BYTES]
        lines, line_end, self._unfinished = (self._unfinished + data).rpartition(b"\n")
        if line_end:
            self._forward(lines + line_end)
        if len(self._unfinished) > LOG_BYTES:
            self._end_line()
        return bool(data)

    def close(self) -> None:
        """Read the rest, and close the pipe."""
        for _ in range(MAX_LAST_READS):
            if not self.read():
                break
        if self._unfinished:
            self._end_line()
        os.close(self.descriptor)

    def _end_line(self) -> None:
        self._forward(self._unfinished + b"\n")
        self._unfinished = b""
