"""The processes of an engine inside a program: its cores, and the fork server if there is one. Knows no request."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import EngineDeadError, PyllmError
from pyllm.launch import topology
from pyllm.supervision.server_processes import STOP_GRACE, last_of
from pyllm.supervision.start_progress import show_progress
from pyllm.supervision.supervised_process import SupervisedProcess, start_state
from pyllm.wire.messages import Restarts
from pyllm.wire.sockets import SocketFolder

# An engine inside a program has the server's time limits.
LIMITS = ServerConfig()


class EngineProcesses:
    """Supervises the processes of one engine from `spawn` or `start` to `close`; then it may be started again.

    `on_loss` is called with the error when a process is lost for good; it must not reference the engine, as the event
    loop references these processes. `abandon` is for an engine that was dropped.
    """

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, on_loss: Callable[[PyllmError], None]) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._on_loss = on_loss
        self._folder: SocketFolder | None = None
        self._cores: list[SupervisedProcess] = []
        self._processes: list[SupervisedProcess] = []  # the cores, and their fork server
        self._loss: asyncio.Future[PyllmError] | None = None  # of a process, for good; None: not started
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that watches the processes
        self._closing: asyncio.Task[None] | None = None  # for a dropped engine

    @property
    def is_started(self) -> bool:
        """Whether `start` was called, and `close` was not called since."""
        return self._loss is not None

    def spawn(self) -> None:
        """Start the processes without waiting for them."""
        self._folder = SocketFolder()
        configs = topology.core_configs(
            self._config, self._checkpoint, self._folder.path, LIMITS.ready_timeout, LIMITS.shutdown_timeout
        )
        engine = topology.supervised_engine(configs)
        self._cores, self._processes = engine.cores, engine.cores + engine.fork_servers
        for process in self._processes:
            process.spawn()

    async def start(self, connect: Callable[[list[str]], Awaitable[None]]) -> None:
        """Start the processes, unless they are spawned already, and wait until `connect` reached the cores' addresses.

        Call `close` if this fails.

        Raises:
            StartError: a core did not become ready; the message has the stage it was in.
            EngineDeadError: a process was lost for good meanwhile.
        """
        if not self._processes:
            self.spawn()
        self._loop = asyncio.get_running_loop()
        self._loss = self._loop.create_future()
        connecting = asyncio.create_task(self._reach(connect))
        processes = self._processes  # `close` clears the attribute while the bar may still read it.
        showing = asyncio.create_task(show_progress(lambda: start_state(processes)))
        try:
            either: set[asyncio.Future[Any]] = {connecting, self._loss}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._loss.done():
                raise self._loss.result()
            await connecting
        except BaseException:
            connecting.cancel()
            await asyncio.wait({connecting})
            raise
        finally:
            showing.cancel()
            await asyncio.wait({showing})  # Remove the bar before other output.
        for process in self._processes:
            process.stand_by()

    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [process.process.pid for process in self._processes if process.process is not None]

    def restarts(self) -> list[Restarts]:
        """The restarts of the processes and of their own children."""
        return [restarts for process in self._processes for restarts in process.restarts]

    async def close(self) -> None:
        """End the processes; may be called twice, and if they never became ready."""
        self._loss = None
        processes, self._processes = self._processes, []
        folder, self._folder = self._folder, None
        try:
            for process in processes:
                await process.stop(STOP_GRACE)
        finally:  # Leave no process behind, even if the caller was cancelled.
            for process in processes:
                process.kill()
            if folder is not None:
                folder.close()

    def abandon(self, disconnect: Callable[[], None]) -> None:
        """End the processes from any thread, without waiting; call `disconnect` first if their loop still runs.

        Processes that were spawned but never started end by themselves, as their connection closes.
        """
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._close_aside, disconnect)
        elif self._loop is not None:  # The loop that watched the processes has ended.
            processes, self._processes = self._processes, []
            for process in processes:
                process.kill()
            if self._folder is not None:
                self._folder.close()

    def _close_aside(self, disconnect: Callable[[], None]) -> None:
        disconnect()
        self._closing = asyncio.create_task(self.close(), name="close a dropped engine")

    async def _reach(self, connect: Callable[[list[str]], Awaitable[None]]) -> None:
        lose_core, num_cores = last_of(len(self._cores), self._lose), len(self._cores)
        on_lost = [lose_core] * num_cores + [self._lose] * (len(self._processes) - num_cores)
        starts = (process.start(lose) for process, lose in zip(self._processes, on_lost, strict=True))
        addresses = await asyncio.gather(*starts)
        await connect(addresses[:num_cores])

    def _lose(self, reason: BaseException) -> None:
        error = reason if isinstance(reason, PyllmError) else EngineDeadError(str(reason))
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(error)
        self._on_loss(error)
