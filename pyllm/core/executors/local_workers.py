"""Workers on the core's own machine: forks of the fork server, with sockets and a rendezvous in a private folder."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from pyllm.config.process_config import CoreConfig, WorkerConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.core.executors.fork_server_client import ForkServerClient
from pyllm.core.executors.worker_source import PreparedRank
from pyllm.supervision.child_process import ChildProcess


class LocalWorkers:
    """A `WorkerSource` of forks. Each start has its own files.

    `host_memories` are descriptors of memory that outlives workers and core, one per rank; none without a host pool.
    """

    def __init__(self, config: CoreConfig, host_memories: Sequence[int] = ()) -> None:
        self._config = config
        self._host_memories = host_memories
        self._fork_server = ForkServerClient(config.fork_server, config.index)
        self._starts = itertools.count()

    async def prepare(self) -> list[PreparedRank]:
        self._remove_files()  # left by a core that was killed
        config, number = self._config, next(self._starts)
        folder = Path(config.socket_folder)
        return [
            PreparedRank(
                WorkerConfig(
                    engine=config.engine,
                    checkpoint=config.checkpoint,
                    rank=rank,
                    address=f"ipc://{folder}/worker-{config.index}-{rank}-{number}",
                    rendezvous=f"file://{folder}/ranks-{config.index}-{number}",
                    core_index=config.index,
                )
            )
            for rank in range(num_ranks(config.engine.parallel))
        ]

    async def start(self, worker: WorkerConfig) -> ChildProcess:
        name = f"worker {worker.rank} of core {worker.core_index}"
        memory = self._host_memories[worker.rank] if self._host_memories else None
        return await self._fork_server.fork(name, self._config.ready_timeout, memory)

    async def release(self) -> None:
        self._remove_files()

    def close(self) -> None:
        self._fork_server.close()

    def _remove_files(self) -> None:
        for name in (f"worker-{self._config.index}-*", f"ranks-{self._config.index}-*"):
            for path in Path(self._config.socket_folder).glob(name):
                path.unlink(missing_ok=True)
