"""The worker process of one rank: supervised child, mailbox, step after step. Knows no layer and no scheduler.

torch is imported only once the parent can see that this process lives.
"""

import gc
import logging
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec
import zmq

from pyllm import ipc, log
from pyllm.child import Child, attach
from pyllm.config import WorkerConfig
from pyllm.messages import Control, Reply, Sampled, Step, WorkerInput

if TYPE_CHECKING:
    from pyllm.workers.runner import ModelRunner

Socket = zmq.Socket[bytes]

logger = logging.getLogger(__name__)


def main(config: WorkerConfig, connection: Connection) -> None:
    """Run one rank until SIGTERM or the parent's end; the exit code is 1 where it fails by itself."""
    title = f"pyllm::worker-{config.core_index}-{config.rank}"
    child = attach(connection, title)
    log.configure(title)
    # Ctrl-C reaches the whole process group of a terminal; when workers end is their core's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(child.run(lambda: _work(config, child)))


def _work(config: WorkerConfig, child: Child) -> int:
    runner = load(config, child.enter)
    context: zmq.Context[Socket] = zmq.Context()
    socket = ipc.bind(context, zmq.DEALER, config.address)
    gc.freeze()
    child.started()
    serve(socket, runner, config.rank, lambda stage, step: _report(child, stage, step))
    return 0


def load(config: WorkerConfig, enter: Callable[[str], None]) -> "ModelRunner":
    """A rank with its weights in memory; `enter` is told each stage on the way.

    Raises:
        ConfigError: the configuration and the model or device do not go together.
    """
    # Waiting OpenMP threads spin for some tens of microseconds and then sleep. One that spins longer takes, on shared
    # cores, the processor from the one it waits for, and a step ten times as long. OpenMP reads this with torch.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    enter("importing torch")
    from pyllm.workers.parallel import RankGroup, set_threads
    from pyllm.workers.runner import ModelRunner, worker_device

    ranks = config.engine.parallel.tensor_parallel_size
    set_threads(ranks, config.engine.device.kernel_backend)
    enter("joining ranks")
    group = RankGroup.join(config.rank, ranks, worker_device(config), config.rendezvous)
    enter("loading weights")
    runner = ModelRunner(config, group)
    runner.load()
    return runner


def serve(socket: Socket, runner: "ModelRunner", rank: int, report: Callable[[str, int], None]) -> None:
    """Answer steps and controls in the order they come, until the socket's context ends.

    Rank 0 alone answers a step; every rank answers a control. `report` is told the stage and the last completed step.
    A frame that is no message is logged and dropped. An error inside a step, a broken plan included, is raised: the
    core waits for that step's answer, and the ranks may differ after it.
    """
    decoder = msgspec.msgpack.Decoder(WorkerInput)
    encoder = msgspec.msgpack.Encoder()
    completed = -1
    while True:
        try:
            header, *frames = socket.recv_multipart()
        except zmq.ContextTerminated:
            return
        try:
            message = decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.error("dropped a malformed frame: %s", error)
            continue
        answer: Sampled | Reply
        match message:
            case Step(step):
                report(f"running step {step}", completed)
                answer = runner.run(message, frames[0] if frames else b"")
                completed = step
            case Control(method=method):
                report(f"answering {method}", completed)
                answer = _reply(runner, message)
        report("ready", completed)
        if rank == 0 or isinstance(answer, Reply):
            socket.send(encoder.encode(answer))


def _report(child: Child, stage: str, step: int) -> None:
    child.stage, child.step = stage, step


def _reply(runner: "ModelRunner", control: Control) -> Reply:
    try:
        return Reply(control.id, True, runner.call(control.method, control.args))
    except Exception as error:
        logger.exception("the call %s%r failed", control.method, control.args)
        return Reply(control.id, False, f"{type(error).__name__}: {error}")
