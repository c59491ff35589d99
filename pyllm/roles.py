"""What each process does that was started as a child: a core, an API process, the shared state, a worker.

Each imports the code of its own role, and of no other; configuration comes over the connection to the parent.
"""

import logging
import socket
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec
from setproctitle import setproctitle

from pyllm import log
from pyllm.child import SPARE_TITLE, attach, await_configuration, die_with_parent
from pyllm.errors import ConfigError
from pyllm.process_config import ApiConfig, CoreConfig, StateConfig, WorkerConfig

if TYPE_CHECKING:
    from pyllm.workers.runner import ModelRunner

logger = logging.getLogger(__name__)


def child_main(role: str, connection_file: int, thread_stays: int, *numbers: int) -> int:
    """Play a role in a process that `supervisor.spawn` started, once the configuration has come.

    `thread_stays`: whether the thread that started this process ends only when its parent does. `numbers` are, for a
    core, that of the workers to start meanwhile, and for an API process that of the listening socket.
    """
    if thread_stays:
        die_with_parent()
    setproctitle(SPARE_TITLE)
    connection = Connection(connection_file)
    if role == "core":
        return _core_main(connection, *numbers)
    frame = await_configuration(connection)
    if role == "state":
        return _state_main(msgspec.msgpack.decode(frame, type=StateConfig), connection)
    if role == "api":
        return _api_main(msgspec.msgpack.decode(frame, type=ApiConfig), connection, socket.socket(fileno=numbers[0]))
    raise ConfigError(f"unknown role {role!r}")


def load_rank(config: CoreConfig) -> "ModelRunner":
    """The only rank, loaded into this process, for the uni executor."""
    from pyllm.workers.process import load

    worker = WorkerConfig(engine=config.engine, checkpoint=config.checkpoint, rank=0, address="", rendezvous="")
    return load(worker, lambda stage: logger.info("%s", stage))


def worker_main(connection: Connection, stderr: Connection) -> None:
    """Entry point of a worker process, which `multiprocessing` starts and its core then configures."""
    from pyllm.workers import process

    process.main(connection, stderr)


def _core_main(connection: Connection, num_workers: int) -> int:
    # What takes long comes before the configuration, so that a spare is ready to take the place of another core.
    import zmq

    from pyllm.core import process
    from pyllm.core.executors import rank_process
    from pyllm.core.executors.base import Executor
    from pyllm.core.executors.inline import InlineExecutor
    from pyllm.core.executors.process import ProcessExecutor

    workers = [rank_process.start(worker_main, "spare worker of a spare core") for _ in range(num_workers)]
    config = msgspec.msgpack.decode(await_configuration(connection), type=CoreConfig)
    title = f"pyllm::core-{config.index}"
    child = attach(connection, title)
    log.configure(title)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    executor: Executor
    if config.engine.parallel.distributed_executor_backend == "mp":
        executor = ProcessExecutor(config, worker_main, context, started=workers)
    else:
        executor = InlineExecutor(lambda: load_rank(config))
    return process.run(config, executor, context, child)


def _state_main(config: StateConfig, connection: Connection) -> int:
    from pyllm.frontend.shared import process

    return process.main(config, connection)


def _api_main(config: ApiConfig, connection: Connection, listener: socket.socket) -> int:
    from pyllm.frontend import process

    return process.main(config, connection, listener)
