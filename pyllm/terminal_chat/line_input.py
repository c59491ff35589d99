"""Input without a terminal: each line is a message; a backslash at its end joins the next line to it.

A thread reads, so that the event loop keeps running.
"""

import asyncio
import contextlib
import threading
from typing import TextIO

from pyllm.terminal_chat.terminal_text import open_stdin, whole


class LineInput:
    """Reads `stream` (default: stdin) within a running event loop."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or open_stdin()
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._thread: threading.Thread | None = None

    async def read(self) -> str:
        """The next message.

        Raises:
            EOFError: the input has ended.
        """
        if self._thread is None:
            # A daemon, so that the program can end while it waits for a line.
            self._thread = threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True)
            self._thread.start()
        parts: list[str] = []
        while True:
            line = await self._lines.get()
            if not line:
                self._lines.put_nowait("")
                if parts:
                    return "\n".join(parts)
                raise EOFError
            text = line.rstrip("\r\n")
            if not text.endswith("\\"):
                return "\n".join([*parts, text])
            parts.append(text[:-1])

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: the chat has ended.
            for line in iter(self._stream.readline, ""):
                loop.call_soon_threadsafe(self._lines.put_nowait, whole(line))
            loop.call_soon_threadsafe(self._lines.put_nowait, "")
