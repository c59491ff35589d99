"""The Ray actor of one rank: it runs the worker process on its node, for a core on another node that supervises it.

Passes on the worker's reports, log and exit code unchanged. Knows no messages, and no other rank.
"""

import asyncio
import os
import socket
from functools import partial
from typing import NamedTuple

from pyllm.supervision.process_handle import ProcessHandle, child_handle
from pyllm.supervision.started_child import StartedChild, reap, start_child

CHUNK = 1 << 16  # bytes
DRAIN_TIMEOUT = 1.0  # seconds after a worker's end to read its last reports and log


class ActorLocation(NamedTuple):
    """The location of an actor: its node, the node's address, a free port there, and the number of its GPU."""

    node_id: str
    host: str
    free_port: int
    gpu: int | None


class RankOutput(NamedTuple):
    """A worker's reports and log since the last call; `code` is its exit code, as in `Popen`."""

    reports: bytes
    log: bytes
    code: int | None


class RankActor:
    """One worker process. It ends with this actor, and this actor with the core's Ray job."""

    def __init__(self) -> None:
        self._child: StartedChild | None = None
        self._handle: ProcessHandle | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reports = bytearray()
        self._log = bytearray()
        self._code: int | None = None
        self._changed = asyncio.Event()

    async def locate(self) -> ActorLocation:
        """The location of this actor."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        gpus = [str(number) for number in ray.get_gpu_ids()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        gpu = None
        if gpus:
            gpu = visible.index(gpus[0]) if gpus[0] in visible else int(gpus[0])
        return ActorLocation(ray.get_runtime_context().get_node_id(), host, port, gpu)

    async def start(self, name: str) -> int:
        """Start the worker, which waits for its configuration; returns its process id."""
        self._child = child = start_child(name, "worker")
        self._handle = handle = child_handle(child.process.pid)
        connection = socket.socket(fileno=os.dup(child.connection.fileno()))
        child.connection.close()
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(self._read(reader))
        log_ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(child.stderr, self._read_log, log_ended)
        exited = partial(self._exited, handle, child, [reading, log_ended])
        loop.add_reader(handle.fileno(), exited)
        return child.process.pid

    async def next_output(self) -> RankOutput:
        """Wait for new output and return it. The exit code comes last."""
        await self._changed.wait()
        self._changed.clear()
        output = RankOutput(bytes(self._reports), bytes(self._log), self._code)
        self._reports.clear()
        self._log.clear()
        return output

    async def write(self, data: bytes) -> None:
        """Pass on data from the parent."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    async def signal(self, number: int, to_group: bool) -> None:
        """Send the worker a signal, or kill its process group, unless it has ended."""
        if self._handle is None or self._code is not None:
            return
        if to_group:
            self._handle.kill_group()
        else:
            try:
                self._handle.signal(number)
            except ProcessLookupError:
                return

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(CHUNK):
                self._reports += data
                self._changed.set()
        except ConnectionResetError:
            return

    def _read_log(self, ended: "asyncio.Future[None]") -> None:
        assert self._child is not None
        data = os.read(self._child.stderr, CHUNK)
        if not data:
            asyncio.get_running_loop().remove_reader(self._child.stderr)
            os.close(self._child.stderr)
            ended.set_result(None)
            return
        self._log += data
        self._changed.set()

    def _exited(self, handle: ProcessHandle, child: StartedChild, ends: "list[asyncio.Future[None]]") -> None:
        handle.kill_group()  # Kill its remaining children before its id can be reused.
        asyncio.get_running_loop().remove_reader(handle.fileno())
        code = reap(child.process)
        assert code is not None, "its handle says that it has ended"
        handle.close()
        self._handle = None
        self._ending = asyncio.ensure_future(self._end(code, ends))

    async def _end(self, code: int, ends: "list[asyncio.Future[None]]") -> None:
        await asyncio.wait(ends, timeout=DRAIN_TIMEOUT)
        if self._writer is not None:
            self._writer.close()
        self._code = code
        self._changed.set()
