"""An EngineCore in its own process, with an executor of the caller's choice; the rest is the server's own code."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

import zmq

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.process_config import CoreConfig
from pyllm.core import core_process
from pyllm.core.executors.executor import Executor
from pyllm.supervision.child_process import ChildProcess
from pyllm.supervision.parent_link import attach

# Called in that process; must be picklable.
MakeExecutor = Callable[[CoreConfig, zmq.Context[zmq.Socket[bytes]]], Executor]


def configure(folder: str, engine: EngineConfig, checkpoint: Checkpoint) -> CoreConfig:
    """A core with its sockets, and that of the fork server if its executor needs one, in a private folder."""
    return CoreConfig(
        engine=engine,
        checkpoint=checkpoint,
        bind=f"ipc://{folder}/core",
        socket_folder=folder,
        ready_timeout=60.0,
        shutdown_timeout=10.0,
        fork_server=f"{folder}/forks",
    )


def start(config: CoreConfig, make_executor: MakeExecutor) -> ChildProcess:
    """Start the core's process, watched by the running event loop."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_main, args=(config, make_executor, theirs))
    child.start()
    theirs.close()
    assert child.pid is not None
    core = ChildProcess("core", child.pid, ours, lambda: child.exitcode)
    core.watch()
    return core


def _main(config: CoreConfig, make_executor: MakeExecutor, connection: Connection) -> None:
    child = attach(connection, "pyllm::core-0")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    raise SystemExit(core_process.run(config, make_executor(config, context), context, child))
