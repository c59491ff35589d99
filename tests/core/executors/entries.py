"""What workers without a model run. A fork server is told the name of a function, which gives what each worker runs."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import zmq

from benchmarks.engine import empty_worker
from pyllm.config.process_config import WorkerConfig
from pyllm.supervision.parent_link import attach, await_configuration
from pyllm.wire import ipc
from pyllm.wire.messages import Control
from tests.without_pidfd import refuse_pidfds

Main = Callable[[Connection, int | None], None]


def obedient() -> Main:
    """Become ready, and end as the first `Control` says."""

    def main(connection: Connection, host_memory: int | None = None) -> None:
        config = _configuration(connection)
        child = attach(connection, f"pyllm::worker-0-{config.rank}")
        socket = ipc.bind(zmq.Context(), zmq.DEALER, config.address)
        child.started(config.address)
        control = msgspec.msgpack.decode(socket.recv(), type=Control)
        os.write(2, b"its last words")
        if control.method == "hang":
            signal.pause()
        if control.method == "exit":
            os._exit(*control.args)
        os.kill(os.getpid(), *control.args)

    return main


def dying_at_once() -> Main:
    """Rank 1 fails; the others would wait for it."""

    def main(connection: Connection, host_memory: int | None = None) -> None:
        if _configuration(connection).rank == 1:
            raise SystemExit(9)
        signal.pause()

    return main


def raising() -> Main:
    """There is no traceback of the fork server's in what it writes, and no second fork server."""

    def main(connection: Connection, host_memory: int | None = None) -> None:
        raise ValueError("no rank can be like this")

    return main


def parent() -> Main:
    """Start another process, tell its id, and wait for a word."""

    def main(connection: Connection, host_memory: int | None = None) -> None:
        started = subprocess.Popen(["sleep", "600"])
        connection.send_bytes(str(started.pid).encode())
        raise SystemExit(int(connection.recv_bytes()))

    return main


def keeping() -> Main:
    """Say what is in the memory that outlives it, leave its id there, and wait for the end."""

    def main(connection: Connection, host_memory: int | None = None) -> None:
        before = "none" if host_memory is None else os.pread(host_memory, 64, 0).decode()
        if host_memory is not None:
            os.ftruncate(host_memory, 0)
            os.pwrite(host_memory, str(os.getpid()).encode(), 0)
        connection.send_bytes(f"{before} {len(os.listdir('/proc/self/fd'))}".encode())
        signal.pause()

    return main


def threaded() -> Main:
    """Leave a thread where there may be none."""
    threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
    return obedient()


def empty_without_pidfd() -> Main:
    """Serve where the fork server is refused pidfds."""
    refuse_pidfds()
    return empty_worker.prepare()


def obedient_without_pidfd() -> Main:
    refuse_pidfds()
    return obedient()


def parent_without_pidfd() -> Main:
    refuse_pidfds()
    return parent()


def broken_where_told() -> Main:
    """Serve, unless there is a file `broken` beside the socket."""

    def main(connection: Connection, host_memory: int | None = None) -> None:
        config = _configuration(connection)
        if config.rank == 1 and (Path(config.address.removeprefix("ipc://")).parent / "broken").exists():
            raise SystemExit(9)
        empty_worker.serve(config, connection)

    return main


def _configuration(connection: Connection) -> WorkerConfig:
    return msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig)
