"""The worker process of one rank: supervised child, mailbox, step after step. Knows no layer and no scheduler.

It is forked from a process that has called `prepare` (`nursery.py`), where torch is imported once for all.
"""

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import msgspec
import zmq

from pyllm import ipc, line_writer, log
from pyllm.child import OUT_OF_MEMORY_EXIT_CODE, Child, attach, await_configuration
from pyllm.messages import Control, Reply, Sampled, Step, WorkerInput
from pyllm.out_of_memory import is_out_of_memory
from pyllm.process_config import WorkerConfig
from pyllm.unused_memory import return_freed_memory

if TYPE_CHECKING:
    from pyllm.workers.runner import ModelRunner

Socket = zmq.Socket[bytes]

# Seconds between two looks at a GPU that is still computing, and at the mailbox.
_PAUSE = 20e-6

logger = logging.getLogger(__name__)


def prepare() -> Callable[[Connection], NoReturn]:
    """Import all that a worker needs, into a process with one thread that stays so; gives what its forks run."""
    _import_everything()
    import torch

    # torch has no types for this one.
    assert not torch.cuda.is_initialized(), "no fork of us could use CUDA"  # type: ignore[no-untyped-call]
    return main


def main(connection: Connection) -> NoReturn:
    """Run one rank until SIGTERM or the parent's end; the exit code tells how it failed where it did by itself."""
    # Ctrl-C reaches the whole process group of a terminal; when workers end is their core's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    config = msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig)
    title = f"pyllm::worker-{config.core_index}-{config.rank}"
    child = attach(connection, title)
    log.configure(title)
    code = child.run(lambda: _work(config, child))
    line_writer.stderr().finish()
    os._exit(code)  # Threads of libraries may run still, as where grammars are read: to finalize under them is a crash.


def _work(config: WorkerConfig, child: Child) -> int:
    try:
        runner = load(config, child.enter)
        context: zmq.Context[Socket] = zmq.Context()
        socket = ipc.bind(context, zmq.DEALER, config.address)
        gc.freeze()
        return_freed_memory()  # of what was read and packed
        child.started()
        serve(socket, runner, config.rank, lambda stage, step: _report(child, stage, step))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.exception("out of memory while %s", child.stage)
        child.failed(f"out of memory: {error}")
        return OUT_OF_MEMORY_EXIT_CODE
    return 0


def _import_everything() -> None:
    """Whatever takes its time and is the same for each configuration."""
    # Waiting OpenMP threads spin for some tens of microseconds and then sleep. One that spins longer takes, on shared
    # cores, the processor from the one it waits for, and a step ten times as long. OpenMP reads this with torch.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    import pyllm.workers.runner  # noqa: F401 - for `load`


def load(config: WorkerConfig, enter: Callable[[str], None]) -> "ModelRunner":
    """A rank with its weights in memory; `enter` is told each stage on the way.

    Raises:
        ConfigError: the configuration and the model or device do not go together.
    """
    if "torch" not in sys.modules:  # as it is in a fork of who has called `prepare`
        enter("importing torch")
        _import_everything()
    from pyllm.workers.parallel import RankGroup, set_threads
    from pyllm.workers.runner import ModelRunner, worker_device

    ranks = config.engine.parallel.tensor_parallel_size
    set_threads(config.engine)
    enter("joining ranks")
    group = RankGroup.join(config.rank, ranks, worker_device(config), config.rendezvous)
    enter("loading weights")
    runner = ModelRunner(config, group)
    runner.load()
    return runner


class Pending(Protocol):
    """A step that was begun."""

    def is_done(self) -> bool:
        """Whether `answer` would not wait."""

    def answer(self) -> Sampled:
        """The step's tokens, once they are there."""


class Rank(Protocol):
    """What the mailbox needs of a runner."""

    def begin(self, step: Step, frame: bytes) -> Pending:
        """Start a step. Where it runs beside this thread, the next one may begin before its answer is asked for."""

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Answer a `Control`."""


def serve(socket: Socket, runner: Rank, rank: int, report: Callable[[str, int], None]) -> None:
    """Answer steps and controls in the order they come, until the socket's context ends.

    A step that comes while a GPU computes the one before is begun at once, so that the GPU never waits for this side.
    Rank 0 alone answers a step; every rank answers a control. `report` is told the stage and the last completed step.
    A frame that is no message is logged and dropped. An error inside a step, a broken plan included, is raised: the
    core waits for that step's answer, and the ranks may differ after it.
    """
    decoder = msgspec.msgpack.Decoder(WorkerInput)
    encoder = msgspec.msgpack.Encoder()
    completed = -1
    pending: Pending | None = None

    def answer_pending() -> None:
        nonlocal completed, pending
        if pending is not None:
            sampled, pending = pending.answer(), None
            completed = sampled.step
            if rank == 0:
                socket.send(encoder.encode(sampled))

    while True:
        try:
            if pending is not None and not _message_comes_before(pending, socket):
                answer_pending()
                report("ready", completed)
            header, *frames = socket.recv_multipart()
        except zmq.ContextTerminated:
            return
        try:
            message = decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.error("dropped a malformed frame: %s", error)
            continue
        match message:
            case Step():
                report("running", completed)
                begun = runner.begin(message, frames[0] if frames else b"")
                if pending is not None:
                    answer_pending()
                    report("running", completed)
                pending = begun
            case Control(method=method):
                answer_pending()
                report(f"answering {method}", completed)
                reply = _reply(runner, message)
                report("ready", completed)
                socket.send(encoder.encode(reply))


def _message_comes_before(pending: Pending, socket: Socket) -> bool:
    """Wait for the step's end or for the next message, and tell whether it was a message."""
    while not pending.is_done():
        if socket.poll(0):
            return True
        time.sleep(_PAUSE)
    return False


def _report(child: Child, stage: str, step: int) -> None:
    child.stage, child.step = stage, step


def _reply(runner: Rank, control: Control) -> Reply:
    try:
        return Reply(control.id, True, runner.call(control.method, control.args))
    except Exception as error:
        logger.exception("the call %s%r failed", control.method, control.args)
        return Reply(control.id, False, f"{type(error).__name__}: {error}")
