"""What a server with a KV store holds, seen from outside: its core's figures, open files, the folder, host memory."""

import asyncio
import contextlib
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import psutil

from pyllm import EngineClient
from pyllm.errors import PyllmError
from tests.e2e.server import Server

LOCK, SEGMENT = "lock", re.compile(r"[0-9a-f]{16}-[0-9a-f]+\.segment")
LOCK_BYTES = 8
TIMEOUT = 30.0
# A core that has nothing to do has none of these.
AT_REST = ("num_requests", "num_used_blocks", "num_saving_blocks", "num_loading", "num_held", "num_kv_loads")
COUNTED = ("num_kv_loaded_tokens", "num_kv_matched_tokens", "num_saves", "num_failed_loads")

Stats = dict[str, int]


class CoreFigures:
    """A client of a server's core beside its API process. `totals` adds up what each of its cores was last seen with.

    `sockets` is the folder that holds the server's private one alone.
    """

    def __init__(self, sockets: Path) -> None:
        self.totals: Counter[str] = Counter()
        self._last: Stats = {}
        self._sockets = sockets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "CoreFigures":
        (folder,) = self._sockets.glob("pyllm-*")
        self._thread.start()
        self._client = self._run(EngineClient.connect(f"ipc://{folder}/core-0"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.totals.update(self._last)

    def now(self) -> Stats:
        """The figures; none while there is no core."""
        try:
            stats = self._run(self._client.stats())
        except (PyllmError, TimeoutError):
            return {}
        counted = {name: stats.get(name, 0) for name in COUNTED}
        if any(counted[name] < self._last.get(name, 0) for name in COUNTED):  # another core's
            self.totals.update(self._last)
        self._last = counted
        return stats

    def wait_for(self, holds: Callable[[Stats], bool], limit: int) -> bool:
        """Look at most so many times; whether it held."""
        return any(stats and holds(stats) for stats in (self.now() for _ in range(limit)))

    async def _close(self) -> None:
        self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)


class Holdings(NamedTuple):
    """Of a server at rest. `descriptors` are those by title that are no segments; they open and close all the time."""

    descriptors: dict[str, int]
    memories: int  # descriptors of host memory
    deleted_bytes: int  # of segments that are gone but for a descriptor


def take(server: Server) -> Holdings:
    """Look at all processes of a server now."""
    descriptors: Counter[str] = Counter()
    memories = deleted_bytes = 0
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            title = (process.cmdline() or [""])[0]
            for path in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    link = os.readlink(path)
                    is_segment = ".segment" in link
                    descriptors[title] += not is_segment
                    memories += link.startswith("/memfd:pyllm")
                    if is_segment and link.endswith("(deleted)"):
                        deleted_bytes += path.stat().st_size
    return Holdings(dict(descriptors), memories, deleted_bytes)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a store's folder."""
    sizes = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # It was evicted meanwhile.
            sizes.append(path.stat().st_size)
    return sum(sizes)


def strays(folder: Path) -> list[str]:
    """Files in a store's folder that are none of a store's."""
    return [path.name for path in folder.iterdir() if path.name != LOCK and not SEGMENT.fullmatch(path.name)]
