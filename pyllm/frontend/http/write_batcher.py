"""Batches writes to sockets: several leave together, all before the event loop waits again.

The code that writes to sockets and the code that makes the next part evict each other from the processor's caches, so
they take turns. Knows no HTTP.
"""

import asyncio

# Larger batches are no faster, and their first part would wait longer.
PARTS_AT_ONCE = 64


class WriteBatcher:
    """The batcher of one event loop. Parts leave in the order in which they were added, across all transports."""

    __slots__ = ("_is_scheduled", "_parts")

    def __init__(self) -> None:
        self._parts: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._is_scheduled = False

    def add(self, transport: asyncio.WriteTransport, part: bytes) -> None:
        """Write a part soon; if the transport closes meanwhile, never."""
        parts = self._parts
        parts.append((transport, part))
        if len(parts) == PARTS_AT_ONCE:
            self.flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_turn)

    def flush(self) -> None:
        """Write everything now."""
        parts, self._parts = self._parts, []
        for transport, part in parts:
            if not transport.is_closing():
                transport.write(part)

    def _flush_turn(self) -> None:
        self._is_scheduled = False
        self.flush()
