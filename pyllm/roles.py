"""What each process does that was started as a child: a core, an API process, the shared state, the nursery.

Each imports the code of its own role, and of no other; configuration comes over the connection to the parent.
"""

import logging
import os
import socket
from mmap import mmap
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec
from setproctitle import setproctitle

from pyllm import log
from pyllm.child import SPARE_TITLE, attach, await_configuration, die_with_parent, keep_exit_codes
from pyllm.errors import ConfigError
from pyllm.process_config import ApiConfig, CoreConfig, NurseryConfig, StateConfig, WorkerConfig

if TYPE_CHECKING:
    from pyllm.workers.runner import ModelRunner

logger = logging.getLogger(__name__)


def child_main(role: str, connection_file: int, thread_stays: int, *files: int) -> int:
    """Play a role in a process that `supervisor.spawn` started, once the configuration has come.

    `thread_stays`: whether the thread that started this process ends only when its parent does. `files` are, for an API
    process, the number of the listening socket, and for a core that of the memory for its last steps.
    """
    if thread_stays:
        die_with_parent()
    keep_exit_codes()
    setproctitle(SPARE_TITLE)
    connection = Connection(connection_file)
    if role == "core":
        return _core_main(connection, *files)
    frame = await_configuration(connection)
    if role == "state":
        return _state_main(msgspec.msgpack.decode(frame, type=StateConfig), connection)
    if role == "api":
        return _api_main(msgspec.msgpack.decode(frame, type=ApiConfig), connection, socket.socket(fileno=files[0]))
    if role == "nursery":
        return _nursery_main(msgspec.msgpack.decode(frame, type=NurseryConfig), connection)
    raise ConfigError(f"unknown role {role!r}")


def load_rank(config: CoreConfig) -> "ModelRunner":
    """The only rank, loaded into this process, for the uni executor."""
    from pyllm.workers.process import load

    worker = WorkerConfig(engine=config.engine, checkpoint=config.checkpoint, rank=0, address="", rendezvous="")
    return load(worker, lambda stage: logger.info("%s", stage))


def _core_main(connection: Connection, memory_file: int) -> int:
    # What takes long comes before the configuration, so that a spare is ready to take the place of another core.
    import zmq

    from pyllm.core import process
    from pyllm.core.executors.base import Executor
    from pyllm.core.executors.inline import InlineExecutor
    from pyllm.core.executors.process import ProcessExecutor

    config = msgspec.msgpack.decode(await_configuration(connection), type=CoreConfig)
    title = f"pyllm::core-{config.index}"
    child = attach(connection, title)
    log.configure(title)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    executor: Executor
    if config.engine.parallel.distributed_executor_backend == "mp":
        executor = ProcessExecutor(config, context)
    else:
        executor = InlineExecutor(lambda: load_rank(config))
    memory = mmap(memory_file, 0)
    os.close(memory_file)  # It stays mapped.
    return process.run(config, executor, context, child, memory)


def _nursery_main(config: NurseryConfig, connection: Connection) -> int:
    from pyllm import nursery

    return nursery.main(config, connection)


def _state_main(config: StateConfig, connection: Connection) -> int:
    from pyllm.frontend.shared import process

    return process.main(config, connection)


def _api_main(config: ApiConfig, connection: Connection, listener: socket.socket) -> int:
    from pyllm.frontend import process

    return process.main(config, connection, listener)
