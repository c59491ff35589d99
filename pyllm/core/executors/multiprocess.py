"""The executor with one process for each rank, each on a ZeroMQ DEALER pair of its own.

Forwards plans and answers; looks at no tokens. Knows a worker's messages, but neither its code nor its machine, which
a `WorkerSource` knows.
"""

import asyncio
import itertools
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from pyllm._rust import Plan
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.process_config import CoreConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.core.executors import worker_death
from pyllm.core.executors.worker_source import PreparedRank, WorkerSource
from pyllm.errors import Cause, EngineDeadError, StartError, WorkerDeadError, WrongSettingError
from pyllm.supervision.child_process import ChildProcess, end
from pyllm.supervision.restarts import all_restarted, with_pids
from pyllm.wire import ipc
from pyllm.wire.messages import Control, Reply, Restarts, Sampled, Step, WorkerInput, WorkerOutput


class ProcessExecutor:
    """Runs ranks in processes. The rank that samples answers each step with the tokens; every rank answers `Control`s.

    When one rank ends, all others are killed, so that none waits for its data. Each start has its own sockets and
    rendezvous, so that no message of an earlier start can reach it. `source` starts the processes. `on_progress` gets
    the share of weights that the slowest rank has loaded, `on_restarts` the ranks that were restarted, including those
    in `CoreConfig.kept`.
    """

    def __init__(
        self,
        config: CoreConfig,
        context: zmq.Context[zmq.Socket[bytes]],
        source: WorkerSource,
        on_progress: Callable[[float], None] = lambda progress: None,
        on_restarts: Callable[[tuple[Restarts, ...]], object] = lambda restarts: None,
    ) -> None:
        self._on_progress = on_progress
        self._on_restarts = on_restarts
        self._restarts = config.kept.workers or ()
        self._config = config
        self._context = context
        self._size = num_ranks(config.engine.parallel)
        self._progress = [0.0] * self._size
        self._ranks: list[ChildProcess] = []
        self._source = source
        self._endpoints: list[ipc.Endpoint[WorkerOutput, WorkerInput]] = []
        self._steps: deque[tuple[int, asyncio.Future[Sampled]]] = deque()
        self._calls: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()
        self._death: WorkerDeadError | None = None

    @property
    def death(self) -> WorkerDeadError | None:
        return self._death

    async def start(self) -> None:
        self._progress = [0.0] * self._size
        try:
            prepared = await self._source.prepare()
            for each in prepared:
                await self._start_rank(each)
            if self._restarts:
                self._on_restarts(with_pids(self._restarts, [process.pid for process in self._ranks]))
            addresses = await asyncio.gather(*(process.ready(self._config.ready_timeout) for process in self._ranks))
            for rank, (address, each) in enumerate(zip(addresses, prepared, strict=True)):
                socket = ipc.connect(self._context, address, each.keys)
                self._endpoints.append(ipc.Endpoint(socket, WorkerOutput, self._receiver(rank), self._malformed))
        except BaseException as error:
            death = self._death
            await self._end_ranks()
            if isinstance(error, StartError) and not isinstance(error, WrongSettingError) and death is not None:
                raise StartError(str(death)) from None  # Name the rank that died first.
            raise

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        if self._death is not None:
            future.set_exception(self._death)
            return future
        self._steps.append((plan.step, future))
        header = Step(plan.step, tuple(plan.counts), transfers)
        self._send(header, plan)
        return future

    def kill(self, cause: Cause) -> None:
        stages = ", ".join(f"{process.name} was {process.stage}" for process in self._ranks)
        log = b"".join(process.log for process in self._ranks)
        self._die(WorkerDeadError(f"the workers were ended as {cause}: {stages}", cause, log))

    async def restart(self) -> None:
        reason = str(self._death or "it was restarted with all other ranks")
        self._restarts = all_restarted(self._restarts, self._size, time.monotonic(), reason)
        await self._end_ranks()
        self._death = None
        await self.start()

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if self._death is not None:
            raise self._death
        number = next(self._call_ids)
        futures = [asyncio.get_running_loop().create_future() for _ in self._ranks]
        self._calls.update({(rank, number): future for rank, future in enumerate(futures)})
        self._send(Control(number, method, args))
        try:
            async with asyncio.timeout(self._config.ready_timeout):
                return await asyncio.gather(*futures)
        except TimeoutError:  # Ranks that hang may still send heartbeats, and calls have no stall watch.
            self.kill("stalled")
            assert self._death is not None
            raise self._death from None

    def use_weights(self, checkpoint: Checkpoint) -> None:
        self._source.use_weights(checkpoint)

    async def close(self) -> None:
        await self._end_ranks()
        await self._source.close()

    async def _start_rank(self, prepared: PreparedRank) -> None:
        process = await self._source.start(prepared.worker)
        process.on_progress = lambda share: self._advance(prepared.worker.rank, share)
        self._ranks.append(process)
        process.exited.add_done_callback(lambda _: self._exited(process))
        process.configure(prepared.worker)

    def _advance(self, rank: int, share: float) -> None:
        """Note the share of weights that a rank has loaded; the slowest rank's is the progress of the start."""
        self._progress[rank] = share
        self._on_progress(min(self._progress))

    async def _end_ranks(self) -> None:
        """End the ranks of a start, and release its resources. Raises StartError if a rank cannot be killed."""
        self._die(WorkerDeadError("the workers were ended", "killed"))
        for endpoint in self._endpoints:
            endpoint.close()
        self._endpoints.clear()
        ranks, self._ranks = self._ranks, []
        alive = await end(ranks)
        await self._source.release()
        if alive:
            raise StartError(f"{', '.join(process.name for process in alive)} could not be killed")

    def _send(self, message: WorkerInput, *frames: Any) -> None:
        """Send a message to every rank, in the same order."""
        for rank, endpoint in enumerate(self._endpoints):
            if not endpoint.send(message, *frames):
                self._die(WorkerDeadError(f"worker {rank} reads no messages: its queue is full"))

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
            if self._death is None:
                self._die(WorkerDeadError(f"a worker answered step {step}, which is not the oldest in flight"))
            return
        _, future = self._steps.popleft()
        if not future.done():
            future.set_result(sampled)

    def _malformed(self, identity: bytes, text: str) -> None:
        del identity
        self._die(WorkerDeadError(f"a worker sent a frame that does not decode: {text}"))

    def _exited(self, process: ChildProcess) -> None:
        if process in self._ranks:
            ended = [process for process in self._ranks if process.exited.done()]
            self._die(worker_death.death(worker_death.first_to_blame(ended)))

    def _die(self, death: WorkerDeadError) -> None:
        if self._death is not None:
            return
        self._death = death
        for process in self._ranks:
            process.signal(signal.SIGKILL)
        for future in [future for _, future in self._steps] + list(self._calls.values()):
            if not future.done():
                future.set_exception(death)
        self._steps.clear()
        self._calls.clear()
