"""The entry points of child processes: a core, a worker, an API process, the shared state, the fork server.

Each imports only the code of its own role, in its function, and gets its configuration over the connection to the
parent.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from functools import partial
from mmap import mmap
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

import msgspec
from setproctitle import setproctitle

from pyllm.errors import ConfigError
from pyllm.supervision.parent_link import SPARE_TITLE, attach, await_configuration, die_with_parent, keep_exit_codes
from pyllm.supervision.started_child import StartedChild, start_child

if TYPE_CHECKING:
    from pyllm.checkpoint.types import Checkpoint
    from pyllm.config.process_config import CoreConfig
    from pyllm.core.executors.inline import InlineExecutor
    from pyllm.core.executors.worker_source import WorkerSource
    from pyllm.workers.model_runner import ModelRunner

logger = logging.getLogger(__name__)


def child_main(role: str, connection_file: int, thread_stays: int, *files: int) -> int:
    """Run a role in a process that `start_child` started, once its configuration has arrived.

    `thread_stays`: whether the thread that started this process lives as long as its process. `files` are file
    descriptors: the listening socket of an API process; the host memories of a core's ranks, if any, and the memory
    for its last steps; the host memory of a worker, if any. Returns the exit code.
    """
    if thread_stays:
        die_with_parent()
    # OpenBLAS starts its threads when it is loaded, and a fork server may have none.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    keep_exit_codes()
    setproctitle(SPARE_TITLE)
    connection = Connection(connection_file)
    if role in {"core", "model_core"}:
        return _core_main(connection, *files, has_worker=role == "model_core")
    if role == "worker":
        return _worker_main(connection, *files)
    if role == "state":
        return _state_main(connection)
    if role == "api":
        return _api_main(connection, socket.socket(fileno=files[0]))
    if role == "catalogue":
        return _catalogue_main(connection, socket.socket(fileno=files[0]))
    if role == "fork_server":
        return _fork_server_main(connection)
    raise ConfigError(f"unknown role {role!r}")


def inline_executor(config: "CoreConfig") -> "InlineExecutor":
    """The uni executor, which loads the only rank into this process."""
    from pyllm.core.executors.inline import InlineExecutor

    def load_rank(checkpoint: "Checkpoint") -> "ModelRunner":
        from pyllm.config.process_config import WorkerConfig
        from pyllm.workers.worker_process import load

        worker = WorkerConfig(
            engine=config.engine, checkpoint=checkpoint, rank=0, address="", rendezvous="", core_index=config.index
        )
        return load(worker, lambda stage: logger.info("%s", stage))

    return InlineExecutor(partial(load_rank, config.checkpoint), load_rank)


def _core_main(connection: Connection, *files: int, has_worker: bool) -> int:
    """Run a core. A spare for any model `has_worker`: it starts a worker before it has its configuration."""
    worker = None
    if has_worker:  # First: it has the most to import.
        with contextlib.suppress(OSError):  # Then it is started later, which says what is missing.
            worker = start_child("worker 0", "worker")
    if not connection.poll():  # A spare imports before its configuration arrives, so that it can start at once.
        import pyllm.core.core_process
        import pyllm.core.executors.local_workers
        import pyllm.core.executors.multiprocess  # noqa: F401
    from pyllm.config.process_config import CoreConfig

    *host_memories, trace_file = files
    config = msgspec.msgpack.decode(await_configuration(connection), type=CoreConfig)
    source = _worker_source(config, host_memories, worker)
    import zmq

    from pyllm import log
    from pyllm.core import core_process
    from pyllm.core.executors.executor import Executor
    from pyllm.core.executors.multiprocess import ProcessExecutor
    from pyllm.supervision import line_writer
    from pyllm.supervision.log_level import set_log_level
    from pyllm.wire.supervision_messages import Kept

    title = f"pyllm::core-{config.index}"
    parent = attach(connection, title)
    if level := (config.kept.settings or {}).get("log_level"):
        set_log_level(level)
    log.configure_child(title, config.engine.log)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    executor: Executor
    if source is None:
        executor = inline_executor(config)
    else:
        executor = ProcessExecutor(
            config, context, source, parent.advance, lambda restarts: parent.keep(Kept(workers=restarts))
        )
    memory = mmap(trace_file, 0)
    os.close(trace_file)  # The memory stays mapped.
    code = core_process.run(config, executor, context, parent, memory)
    # Ray leaves its cluster when the process is finalized.
    if config.engine.parallel.distributed_executor_backend != "ray":
        line_writer.end_process(code)  # At once, without waiting for a hanging thread of a KV store.
    return code


def _worker_source(
    config: "CoreConfig", host_memories: Sequence[int], early: StartedChild | None
) -> "WorkerSource | None":
    """The source of a core's workers, and None if it computes by itself. Workers of its own import while it does."""
    backend = config.engine.parallel.distributed_executor_backend
    if backend == "uni":
        return None
    if backend == "ray":
        from pyllm.core.executors.ray_workers import RayWorkers

        return RayWorkers(config)
    from pyllm.core.executors.local_workers import ForkedWorkers, SpawnedWorkers

    if config.fork_server:
        return ForkedWorkers(config, host_memories)
    workers = SpawnedWorkers(config, host_memories, early=early)
    workers.begin()
    return workers


def _worker_main(connection: Connection, *host_memory: int) -> NoReturn:
    """Run a worker that is not forked: a child of its core, or one on another node."""
    from pyllm.workers.worker_process import prepare

    prepare()(connection, *host_memory)


def _fork_server_main(connection: Connection) -> int:
    from pyllm import log
    from pyllm.config.process_config import ForkServerConfig
    from pyllm.supervision import fork_server

    config = msgspec.msgpack.decode(await_configuration(connection), type=ForkServerConfig)
    log.configure_child(fork_server.TITLE, config.log, may_wait=True)  # Forking allows no thread for the log.
    return fork_server.main(config, connection)


def _state_main(connection: Connection) -> int:
    from pyllm.config.process_config import StateConfig
    from pyllm.frontend.shared import state_process

    return state_process.main(msgspec.msgpack.decode(await_configuration(connection), type=StateConfig), connection)


def _api_main(connection: Connection, listener: socket.socket) -> int:
    from pyllm.config.process_config import ApiConfig
    from pyllm.frontend import api_process

    if not connection.poll():
        api_process.import_application()
    config = msgspec.msgpack.decode(await_configuration(connection), type=ApiConfig)
    return api_process.main(config, connection, listener)


def _catalogue_main(connection: Connection, listener: socket.socket) -> int:
    from pyllm.config.process_config import CatalogueApiConfig
    from pyllm.frontend import catalogue_process

    config = msgspec.msgpack.decode(await_configuration(connection), type=CatalogueApiConfig)
    return catalogue_process.main(config, connection, listener)
