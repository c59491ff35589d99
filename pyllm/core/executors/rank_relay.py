"""A worker process on another node as a `ChildProcess` of the core, through the actor that runs it.

Carries bytes both ways. Knows neither the worker's messages nor how the actor was placed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from pyllm.core.executors.rank_actor import CHUNK
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.parent_link import ORPHANED_EXIT_CODE
from pyllm.supervision.process_handle import RemoteHandle

NODE_TIMEOUT = 3.0  # seconds until a killed rank counts as gone if its node does not answer

logger = logging.getLogger(__name__)


class RankRelay:
    """`actor` is the handle of a `RankActor`. `destroy` ends the actor itself, without waiting.

    `wait_for_root_cause` is awaited before a rank that failed by itself is reported: ranks that exchange data with a
    dead one fail, too, and may be reported first.
    """

    def __init__(
        self,
        name: str,
        actor: Any,
        destroy: Callable[[], None],
        wait_for_root_cause: Callable[[], Awaitable[None]],
        *,
        node_timeout: float = NODE_TIMEOUT,
    ) -> None:
        self._node_timeout = node_timeout
        self._actor = actor
        self._destroy = destroy
        self._wait_for_root_cause = wait_for_root_cause
        self._tasks: set[asyncio.Future[Any]] = set()
        self._giving_up: asyncio.TimerHandle | None = None
        self._is_over = False
        self._writers: list[asyncio.StreamWriter] = []
        ours, theirs = socket.socketpair()
        log, self._log_socket = socket.socketpair()
        ended, self._end = os.pipe()
        self._connection = theirs
        # Process id 0: its id on the other node may be that of another process here.
        self.child = ChildProcess(
            name,
            0,
            Connection(ours.detach()),
            lambda: None,
            log.detach(),
            handle=RemoteHandle(ended, self._signal),
            count_oom_kills=lambda: 0,
        )

    async def start(self) -> None:
        """Start the worker, and relay its output."""
        self.child.watch()
        reader, reports = await asyncio.open_unix_connection(sock=self._connection)
        _, log = await asyncio.open_unix_connection(sock=self._log_socket)
        self._writers = [reports, log]
        self._run(self._follow(reader))

    def lose(self, reason: str) -> None:
        """Count the worker as lost with its node, so that no request is to blame. Ends the actor if it lives."""
        if self._is_over:
            return
        self._destroy()
        self.child.silent = False
        self.child.failure = self.child.failure or reason
        self._over(ORPHANED_EXIT_CODE)

    def close(self) -> None:
        """Stop relaying, and end the worker."""
        self.lose("it was ended with the others")
        for task in self._tasks:
            task.cancel()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._actor.start.remote(self.child.name)
            self._run(self._forward(reader))
            while True:
                *output, code = await self._actor.next_output.remote()
                for writer, data in zip(self._writers, output, strict=True):
                    writer.write(data)
                if code is not None:
                    break
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds for an actor that does not answer
            text = (str(error).strip().splitlines() or [""])[0]
            self.lose(f"its node or its actor is gone: {type(error).__name__}: {text}")
            return
        if code > 0 and self.child.started.done():
            await self._wait_for_root_cause()
        self._over(code)

    async def _forward(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(CHUNK):
                self._actor.write.remote(data)

    def _signal(self, number: int, to_group: bool) -> None:
        if self._is_over:
            return
        self._actor.signal.remote(int(number), to_group)
        if number == signal.SIGKILL and self._giving_up is None:
            loop = asyncio.get_running_loop()
            reason = f"its node did not answer for {self._node_timeout:g} s after the kill"
            self._giving_up = loop.call_later(self._node_timeout, self.lose, reason)

    def _over(self, code: int) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._giving_up is not None:
            self._giving_up.cancel()
        self.child.tell_code(code)
        os.close(self._end)
        for writer in self._writers:
            writer.close()

    def _run(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
