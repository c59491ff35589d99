"""The worker process of one rank: answers steps and controls in order. Knows no layer and no scheduler.

Where it needs torch, the fork server (`supervision/fork_server.py`) imports its modules once for all workers.
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

from pyllm import log
from pyllm.checkpoint.types import check_unchanged
from pyllm.config.process_config import WorkerConfig, needs_torch
from pyllm.config.rank_coordinates import sampling_rank
from pyllm.errors import ConfigError
from pyllm.supervision import line_writer
from pyllm.supervision.parent_link import OUT_OF_MEMORY_EXIT_CODE, ParentLink, attach, await_configuration
from pyllm.supervision.process_memory import is_out_of_memory, return_freed_memory
from pyllm.wire import curve, ipc
from pyllm.wire.messages import Control, Reply, Step, WorkerInput
from pyllm.workers import life_lock
from pyllm.workers.loaders.local_files import on_this_machine

if TYPE_CHECKING:
    from pyllm.workers.model_runner import ModelRunner
    from pyllm.workers.rank_profile import Pending

Socket = zmq.Socket[bytes]

# Seconds between two polls of a GPU that is still computing, and of the socket.
_PAUSE = 20e-6
# Milliseconds without a message after which a rank begins what need not be there at the start.
IDLE_TIME = 1000

logger = logging.getLogger(__name__)


def prepare() -> Callable[[Connection, int | None], NoReturn]:
    """Import the modules of a worker without torch, and start no thread; return the worker's main function."""
    gc.disable()  # Imports leave almost no garbage, and collections would take a tenth of their time.
    import pyllm.workers.model_runner  # noqa: F401 - for `load`

    gc.freeze()
    gc.enable()
    return main


def prepare_torch() -> Callable[[Connection, int | None], NoReturn]:
    """Like `prepare`, with torch and the modules that use it, too."""
    _import_torch()
    import torch

    # torch has no types for this function.
    assert not torch.cuda.is_initialized(), "no fork of us could use CUDA"  # type: ignore[no-untyped-call]
    return main


def prepare_transformers() -> Callable[[Connection, int | None], NoReturn]:
    """Like `prepare_torch`, with the modules of workers of a transformers model, too."""
    forked = prepare_torch()
    import pyllm.workers.transformers_backend.isolation  # noqa: F401 - for `load`

    return forked


def main(connection: Connection, host_memory: int | None = None) -> NoReturn:
    """Run one rank until SIGTERM or the parent's end; the exit code tells how it failed.

    `host_memory` is a descriptor of memory that outlives this process, for the host pool.
    """
    # Ctrl-C reaches the whole process group of a terminal, but the core decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    config = msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig)
    title = f"pyllm::worker-{config.core_index}-{config.rank}"
    parent = attach(connection, title)
    log.configure_child(title, config.engine.log)
    line_writer.end_process(parent.run(lambda: _work(config, parent, host_memory)))


def _work(config: WorkerConfig, parent: ParentLink, host_memory: int | None) -> int:
    try:
        if config.lock:
            parent.enter("waiting for the end of its predecessor")
            life_lock.hold(config.lock)
        parent.enter("looking for the model's files")
        config = msgspec.structs.replace(config, checkpoint=on_this_machine(config.checkpoint, config.engine.model))
        runner = load(config, parent.enter, parent.advance, host_memory=host_memory)
        context: zmq.Context[Socket] = zmq.Context()
        if config.curve_keys is not None:
            curve.admit(context, config.client_key)
        socket = ipc.bind(context, zmq.DEALER, config.address, config.curve_keys)
        gc.freeze()
        return_freed_memory()  # memory from reading and packing weights
        parent.started(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        answers = config.rank == sampling_rank(config.engine.parallel)
        serve(socket, runner, answers, lambda stage, step: _report(parent, stage, step))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.exception("out of memory while %s", parent.stage)
        parent.failed(f"out of memory: {error}")
        return OUT_OF_MEMORY_EXIT_CODE
    return 0


def _import_torch() -> None:
    """Import torch and the modules that use it, which takes seconds."""
    # Waiting OpenMP threads spin for some tens of microseconds and then sleep. On shared cores, a thread that spins
    # longer blocks the thread it waits for: a step takes ten times as long. OpenMP reads this when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    import pyllm.workers.devices.torch_device  # noqa: F401 - for `load`

    prepare()


def load(
    config: WorkerConfig,
    enter: Callable[[str], None],
    advance: Callable[[float], None] = lambda progress: None,
    *,
    host_memory: int | None = None,
) -> "ModelRunner":
    """Load a rank; call `enter` with the name of each stage, `advance` with the fraction of the weights.

    `host_memory` as in `ModelRunner`.

    Raises:
        ConfigError: the configuration does not fit the model or device, or the files have changed.
    """
    check_unchanged(config.checkpoint)
    from pyllm.workers.devices.configured import worker_device

    with_torch = needs_torch(config.engine, config.checkpoint)
    if with_torch and "torch" not in sys.modules:  # A fork server has imported it.
        enter("importing torch")
        _import_torch()
    from pyllm.workers.layers.rank_group import RankGroup
    from pyllm.workers.layers.rank_rendezvous import Place
    from pyllm.workers.layers.weight_placement import configure_kernels
    from pyllm.workers.model_runner import ModelRunner
    from pyllm.workers.numa_binding import bind_to_node

    engine = config.engine
    bind_to_node(config)
    configure_kernels(engine)
    if with_torch:
        from pyllm.workers.devices.torch_device import configure_torch

        configure_torch(engine.device.num_threads, config.checkpoint.spec.transformers)
    enter("joining ranks")
    group = RankGroup.join(
        Place(config.rank, engine.parallel.tensor_parallel_size, engine.parallel.pipeline_parallel_size),
        worker_device(config),
        config.rendezvous,
        batch_invariant=engine.device.batch_invariant,
        only_nccl=engine.parallel.disable_custom_all_reduce,
        host=config.host,
        secret=config.rank_secret,
    )
    enter("loading weights")
    runner = ModelRunner(config, group, host_memory=host_memory)
    runner.load(advance)
    return runner


class Rank(Protocol):
    """The runner of `serve`: a `ModelRunner`, or a fake."""

    def idle(self) -> None:
        """Begin what need not be there at the start."""

    def begin(self, step: Step, frame: bytes) -> "Pending":
        """Start a step. On a GPU, the next step may begin before this one is answered."""

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Answer a `Control`."""


def serve(
    socket: Socket, runner: Rank, answers: bool, report: Callable[[str, int], None], idle_time: int = IDLE_TIME
) -> None:
    """Answer steps and controls in order, until the socket's context ends.

    Call `runner.idle()` once, after the first `idle_time` milliseconds without a message.

    A step that arrives while a GPU computes the one before begins at once, so that the GPU never waits for the host.
    Only the rank that samples `answers` a step; every rank answers a control. `report` gets the stage and the last
    completed step. A malformed frame is logged and dropped. An error inside a step, also a broken plan, is raised: the
    core waits for that step's answer, and the ranks may differ after it.
    """
    decoder = msgspec.msgpack.Decoder(WorkerInput)
    encoder = msgspec.msgpack.Encoder()
    completed = -1
    pending: Pending | None = None
    has_idled = False

    def answer_pending() -> None:
        nonlocal completed, pending
        if pending is not None:
            sampled, pending = pending.answer(), None
            completed = sampled.step
            if answers:
                socket.send(encoder.encode(sampled))

    while True:
        try:
            if pending is not None and not _message_comes_before(pending, socket):
                answer_pending()
                report("ready", completed)
            if not has_idled and pending is None and not socket.poll(idle_time):
                has_idled = True
                runner.idle()
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


def _message_comes_before(pending: "Pending", socket: Socket) -> bool:
    """Wait for the step's end or for the next message; return whether it was a message."""
    while not pending.is_done():
        if socket.poll(0):
            return True
        time.sleep(_PAUSE)
    return False


def _report(parent: ParentLink, stage: str, step: int) -> None:
    parent.stage, parent.step = stage, step


def _reply(runner: Rank, control: Control) -> Reply:
    try:
        return Reply(control.id, True, runner.call(control.method, control.args))
    except ConfigError as error:  # A configuration error needs no traceback.
        return Reply(control.id, False, str(error))
    except Exception as error:
        logger.exception("the call %s%r failed", control.method, control.args)
        return Reply(control.id, False, f"{type(error).__name__}: {error}")
