"""The executor with one process for each rank (multiprocessing `spawn`), each on a ZeroMQ DEALER pair of its own.

Forwards plans and answers; looks at no token. Does not import the worker: it is handed the entry point.
"""

import asyncio
import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zmq

from pyllm import ipc
from pyllm._rust import Plan
from pyllm.errors import EngineDeadError
from pyllm.messages import Control, Reply, Sampled, Step, WorkerInput, WorkerOutput
from pyllm.process_config import CoreConfig, WorkerConfig
from pyllm.supervisor import Process

WorkerEntry = Callable[[WorkerConfig, Connection], None]

# A worker that is told to end has nothing to finish: its core does not ask before its own streams are done.
STOP_GRACE = 3.0


class ProcessExecutor:
    """Rank 0 answers each step with the sampled tokens; every rank answers each `Control`."""

    def __init__(self, config: CoreConfig, entry: WorkerEntry, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._config = config
        self._entry = entry
        self._context = context
        self._ranks: list[Process] = []
        self._endpoints: list[ipc.Endpoint[WorkerOutput, WorkerInput]] = []
        self._steps: deque[tuple[int, asyncio.Future[Sampled]]] = deque()
        self._calls: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()
        self._death: EngineDeadError | None = None

    async def start(self) -> None:
        folder = Path(self._config.socket_folder)
        rendezvous = folder / f"ranks-{self._config.index}"
        rendezvous.unlink(missing_ok=True)
        for rank in range(self._config.engine.parallel.tensor_parallel_size):
            address = f"ipc://{folder}/worker-{self._config.index}-{rank}"
            worker = WorkerConfig(
                engine=self._config.engine,
                checkpoint=self._config.checkpoint,
                rank=rank,
                address=address,
                rendezvous=f"file://{rendezvous}",
                core_index=self._config.index,
            )
            # The core connects and the worker binds: a connecting socket queues messages before its peer is there.
            socket = ipc.connect(self._context, address)
            self._endpoints.append(ipc.Endpoint(socket, WorkerOutput, self._receiver(rank), self._malformed))
            self._spawn(worker)
        await asyncio.gather(*(process.ready(self._config.ready_timeout) for process in self._ranks))

    def submit(self, plan: Plan) -> asyncio.Future[Sampled]:
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        if self._death is not None:
            future.set_exception(self._death)
            return future
        self._steps.append((plan.step, future))
        header = Step(plan.step, tuple(plan.counts))
        self._send(header, plan)
        return future

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if self._death is not None:
            raise self._death
        number = next(self._call_ids)
        futures = [asyncio.get_running_loop().create_future() for _ in self._ranks]
        self._calls.update({(rank, number): future for rank, future in enumerate(futures)})
        self._send(Control(number, method, args))
        return await asyncio.gather(*futures)

    async def close(self) -> None:
        self._death = self._death or EngineDeadError("the executor is closed")
        await asyncio.gather(*(process.stop(STOP_GRACE) for process in self._ranks))
        for endpoint in self._endpoints:
            endpoint.close()
        self._endpoints.clear()
        self._ranks.clear()

    def _spawn(self, worker: WorkerConfig) -> None:
        # `spawn` passes on the named descriptors only, so no rank keeps another's connection open after our end.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._entry, args=(worker, theirs), daemon=True)
        process.start()
        theirs.close()
        assert process.pid is not None
        name = f"worker {worker.rank} of core {worker.core_index}"
        child = Process(name, process.pid, ours, lambda: process.exitcode)
        child.watch()
        child.exited.add_done_callback(lambda _: self._die(child.error()))
        self._ranks.append(child)

    def _send(self, message: WorkerInput, *frames: Any) -> None:
        """To every rank, in the same order."""
        for rank, endpoint in enumerate(self._endpoints):
            if not endpoint.send(message, *frames):
                self._die(EngineDeadError(f"worker {rank} reads no messages: its queue is full"))

    def _receiver(self, rank: int) -> ipc.MessageHandler[WorkerOutput]:
        def receive(identity: bytes, message: WorkerOutput) -> None:
            del identity
            match message:
                case Sampled(step):
                    self._complete(step, message)
                case Reply(number, ok, value):
                    future = self._calls.pop((rank, number), None)
                    if future is not None and not future.done():
                        if ok:
                            future.set_result(value)
                        else:
                            future.set_exception(EngineDeadError(f"worker {rank} refused a call: {value}"))

        return receive

    def _complete(self, step: int, sampled: Sampled) -> None:
        if not self._steps or self._steps[0][0] != step:
            self._die(EngineDeadError(f"a worker answered step {step}, which is not the oldest in flight"))
            return
        _, future = self._steps.popleft()
        if not future.done():
            future.set_result(sampled)

    def _malformed(self, identity: bytes, text: str) -> None:
        del identity
        self._die(EngineDeadError(f"a worker sent a frame that does not decode: {text}"))

    def _die(self, death: EngineDeadError) -> None:
        if self._death is not None:
            return
        self._death = death
        for future in [future for _, future in self._steps] + list(self._calls.values()):
            if not future.done():
                future.set_exception(death)
        self._steps.clear()
        self._calls.clear()
