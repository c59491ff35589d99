"""Workers on the core's own machine, with sockets and a rendezvous in a private folder: its children, or forks."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.process_config import CoreConfig, WorkerConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.core.executors.fork_server_client import ForkServerClient
from pyllm.core.executors.worker_source import PreparedRank
from pyllm.errors import StartError
from pyllm.supervision import child_process
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.spare import Spare
from pyllm.supervision.started_child import StartedChild


class _RankFiles:
    """The files of a core's ranks in its private folder. Each start has its own; with `has_locks`, all share locks."""

    def __init__(self, config: CoreConfig, has_locks: bool) -> None:
        self._config = config
        self.checkpoint = config.checkpoint
        self._has_locks = has_locks
        self._starts = itertools.count()

    def prepare(self) -> list[PreparedRank]:
        """The ranks of the next start."""
        self.remove()  # left by a core that was killed
        config, number = self._config, next(self._starts)
        folder = Path(config.socket_folder)
        return [
            PreparedRank(
                WorkerConfig(
                    engine=config.engine,
                    checkpoint=self.checkpoint,
                    rank=rank,
                    address=f"ipc://{folder}/worker-{config.index}-{rank}-{number}",
                    rendezvous=f"file://{folder}/ranks-{config.index}-{number}",
                    lock=f"{folder}/lock-{config.index}-{rank}" if self._has_locks else "",
                    core_index=config.index,
                )
            )
            for rank in range(num_ranks(config.engine.parallel))
        ]

    def remove(self) -> None:
        """Remove all of them but the locks, which the next core's ranks take."""
        for name in (f"worker-{self._config.index}-*", f"ranks-{self._config.index}-*"):
            for path in Path(self._config.socket_folder).glob(name):
                path.unlink(missing_ok=True)


class SpawnedWorkers:
    """A `WorkerSource` of child processes of the core, which import what a worker without torch needs by themselves.

    `host_memories` are descriptors of memory that outlives workers and core, one per rank; none without a host pool.
    With `warm_spares`, a spare of each rank has imported it all before. `spawn` is `child_process.spawn`. `early` is a
    process without host memory that may have been started before; the first rank gets it.
    """

    def __init__(
        self,
        config: CoreConfig,
        host_memories: Sequence[int] = (),
        spawn: Callable[..., ChildProcess] = child_process.spawn,
        early: StartedChild | None = None,
    ) -> None:
        self._files = _RankFiles(config, has_locks=True)
        self._keeps_spares = config.engine.recovery.warm_spares
        self._spawns = [
            partial(spawn, f"worker {rank} of core {config.index}", "worker", *host_memories[rank : rank + 1])
            for rank in range(num_ranks(config.engine.parallel))
        ]
        self._spares = [Spare(spawn) for spawn in self._spawns]
        self._early: dict[int, ChildProcess] = {}
        if early is not None:
            self._early[0] = child_process.watchable(f"worker 0 of core {config.index}", early)

    def begin(self) -> None:
        """Start the processes of the first start, before there is an event loop: they import meanwhile."""
        with contextlib.suppress(OSError):  # `start` tries again, and says what is missing.
            for rank, spawn in enumerate(self._spawns):
                if rank not in self._early:
                    self._early[rank] = spawn()

    def use_weights(self, checkpoint: Checkpoint) -> None:
        self._files.checkpoint = checkpoint

    async def prepare(self) -> list[PreparedRank]:
        return self._files.prepare()

    async def start(self, worker: WorkerConfig) -> ChildProcess:
        spare, process = self._spares[worker.rank], self._early.pop(worker.rank, None)
        if process is not None and process.has_ended():  # while it waited for its model
            process.abandon()
            process = None
        if process is not None:
            process.watch()
        else:
            try:
                process = spare.take()
            except OSError as error:
                raise StartError(
                    f"worker {worker.rank} of core {worker.core_index} cannot be started: {error}; "
                    "raise the limits of processes, open files and memory"
                ) from None
        if self._keeps_spares:
            process.started.add_done_callback(lambda _: spare.fill())
        return process

    async def release(self) -> None:
        self._files.remove()

    async def close(self) -> None:
        for spare in self._spares:
            await spare.close()


class ForkedWorkers:
    """A `WorkerSource` of forks of the fork server, which has imported torch.

    `host_memories` are descriptors of memory that outlives workers and core, one per rank; none without a host pool.
    """

    def __init__(self, config: CoreConfig, host_memories: Sequence[int] = ()) -> None:
        self._files = _RankFiles(config, has_locks=False)  # The fork server waits for the workers before.
        self._ready_timeout = config.ready_timeout
        self._host_memories = host_memories
        self._fork_server = ForkServerClient(config.fork_server, config.index)

    def use_weights(self, checkpoint: Checkpoint) -> None:
        self._files.checkpoint = checkpoint

    async def prepare(self) -> list[PreparedRank]:
        return self._files.prepare()

    async def start(self, worker: WorkerConfig) -> ChildProcess:
        name = f"worker {worker.rank} of core {worker.core_index}"
        memory = self._host_memories[worker.rank] if self._host_memories else None
        return await self._fork_server.fork(name, self._ready_timeout, memory)

    async def release(self) -> None:
        self._files.remove()

    async def close(self) -> None:
        self._fork_server.close()
