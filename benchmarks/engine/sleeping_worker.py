"""The real worker, with layers that sleep for a fixed time before their attention, to simulate computation.

It records when each layer began and ended its sleep.
"""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import msgspec
import zmq
from pyllm_kernels import AttentionMetadata
from torch import Tensor

from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import sampling_rank
from pyllm.supervision import line_writer
from pyllm.supervision.parent_link import ParentLink, attach, await_configuration
from pyllm.wire import ipc
from pyllm.wire.messages import Step
from pyllm.workers import worker_process
from pyllm.workers.kv.kv_cache import CachedLayer
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.rank_profile import Pending

LAYER_SECONDS = 0.02
TIMES = "layer_times"  # the name of the call that asks for them


def prepare() -> Callable[[Connection, int | None], NoReturn]:
    """Return the main function of forks; replaces the real worker's `prepare`."""
    worker_process.prepare()
    return main


def main(connection: Connection, host_memory: int | None = None) -> NoReturn:
    """Run a worker."""
    config = msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig)
    parent = attach(connection, f"pyllm::worker-{config.core_index}-{config.rank}")
    line_writer.end_process(parent.run(lambda: _work(config, parent)))


class SleepingRunner:
    """A runner whose layers sleep once the cache is allocated; also the hook of its attention."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._times: list[tuple[float, float]] = []
        self.begin: Callable[[Step, bytes], Pending] = runner.begin

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call the runner; `TIMES` returns when each layer began and ended, by `time.monotonic`."""
        if method == TIMES:
            return self._times
        answer = self._runner.call(method, args)
        if method == "allocate":
            self._runner.add_attention_hook(self)
        return answer

    def before_attention(self, layer: int) -> None:
        """Sleep."""
        del layer
        began = time.monotonic()
        time.sleep(LAYER_SECONDS)
        self._times.append((began, time.monotonic()))

    def after_attention(self, layer: int, output: Tensor, cached: CachedLayer, metadata: AttentionMetadata) -> Tensor:
        """Change nothing."""
        del layer, cached, metadata
        return output


def _work(config: WorkerConfig, parent: ParentLink) -> int:
    runner = SleepingRunner(worker_process.load(config, parent.enter, parent.advance))
    socket = ipc.bind(zmq.Context(), zmq.DEALER, config.address)
    parent.started(config.address)
    answers = config.rank == sampling_rank(config.engine.parallel)
    worker_process.serve(socket, runner, answers, lambda stage, step: None)
    return 0
