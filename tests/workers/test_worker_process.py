"""The worker's mailbox over in-process sockets, and the process as its core sees it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import zmq

from pyllm.config.process_config import WorkerConfig
from pyllm.errors import ProtocolError
from pyllm.supervision.parent_link import FINAL_EXIT_CODE, ORPHANED_EXIT_CODE, OUT_OF_MEMORY_EXIT_CODE
from pyllm.wire import ipc
from pyllm.wire.messages import Control, Heartbeat, Reply, Sampled, Step, WorkerOutput
from pyllm.wire.supervision_messages import ChildMessage, Failed, Started
from pyllm.workers import worker_process
from tests.plans import Planner, Row, encode
from tests.tiny_model import write_tiny_model
from tests.workers.engine import greedy, loaded_runner, worker_config

STAGES = ["looking for the model's files", "joining ranks", "loading weights"]  # torch is there, as in a fork server
FAULT, SLOW = 666, 999

Socket = zmq.Socket[bytes]


class FakeStep:
    """As a GPU computes it: done once it is asked for, or once `ends` is set."""

    def __init__(self, sampled: Sampled, ends: threading.Event | None) -> None:
        self._sampled = sampled
        self._ends = ends

    def is_done(self) -> bool:
        return self._ends is None or self._ends.is_set()

    def answer(self) -> Sampled:
        assert self._ends is None or self._ends.wait(10)
        return self._sampled


class FakeRunner:
    """Samples the sum of each plan's tokens; the token FAULT is an error that is not the plan's.

    A step with the token SLOW goes on until a later step sets `catches_up`.
    """

    def __init__(self) -> None:
        self.catches_up = threading.Event()
        self.idles = threading.Semaphore(0)

    def idle(self) -> None:
        self.idles.release()

    def begin(self, step: Step, frame: bytes) -> FakeStep:
        tokens = np.frombuffer(frame, np.int32)[: step.counts[0]]
        if len(tokens) != step.counts[0]:
            raise ProtocolError("the frame is short")
        if FAULT in tokens:
            raise RuntimeError("the machine is broken")
        sampled = Sampled(step.step, b"", tokens.sum(dtype=np.int32).tobytes())
        if SLOW in tokens:
            return FakeStep(sampled, self.catches_up)
        self.catches_up.set()
        return FakeStep(sampled, None)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        return {"add": lambda a, b: a + b}[method](*args)


class Mailbox:
    """The core's end of a worker that runs on a thread, and what it reported."""

    def __init__(self, answers: bool, idle_time: int = worker_process.IDLE_TIME) -> None:
        self.runner = FakeRunner()
        self._idle_time = idle_time
        self.context: zmq.Context[Socket] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.rcvtimeo = 10_000
        self.socket.linger = 0
        self.socket.bind("inproc://worker")
        self.reports: list[tuple[str, int]] = []
        self.errors: list[BaseException] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(answers,))
        self._thread.start()

    def send(self, message: Step | Control, *frames: bytes) -> None:
        self.socket.send_multipart([msgspec.msgpack.encode(message), *frames])

    def receive(self) -> Sampled | Reply:
        return msgspec.msgpack.decode(self.socket.recv(), type=WorkerOutput)

    def close(self) -> None:
        self.socket.close()
        self.context.term()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _serve(self, answers: bool) -> None:
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect("inproc://worker")
        try:
            worker_process.serve(
                socket,
                self.runner,
                answers,
                lambda stage, step: self.reports.append((stage, step)),
                self._idle_time,
            )
        except (RuntimeError, ProtocolError) as error:
            self.errors.append(error)
        finally:
            socket.close()
            self.ended.set()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox(answers=True)
    yield mailbox
    mailbox.close()


@pytest.fixture
def other_mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox(answers=False)
    yield mailbox
    mailbox.close()


def plan(number: int, *tokens: int) -> tuple[Step, bytes]:
    counts, frame = encode({"tokens": tokens})
    return Step(number, counts), frame


def test_the_first_pause_is_used_once() -> None:
    mailbox = Mailbox(answers=True, idle_time=1)
    assert mailbox.runner.idles.acquire(timeout=10)
    for number in range(3):
        mailbox.send(*plan(number, 1))
        assert isinstance(mailbox.receive(), Sampled)
    mailbox.close()
    assert not mailbox.runner.idles.acquire(blocking=False)


def sum_of(sampled: Sampled | Reply) -> int:
    assert isinstance(sampled, Sampled)
    return int.from_bytes(sampled.tokens, "little")


def test_steps_and_controls_are_answered_in_order(mailbox: Mailbox) -> None:
    mailbox.send(*plan(0, 1, 2))
    mailbox.send(Control(7, "add", (3, 4)))
    mailbox.send(*plan(1, 5, 6))
    first, reply, second = mailbox.receive(), mailbox.receive(), mailbox.receive()
    assert (first.step, sum_of(first)) == (0, 3)
    assert reply == Reply(7, True, 7)
    assert (second.step, sum_of(second)) == (1, 11)
    mailbox.send(Control(8, "add", (1, 1)))
    mailbox.receive()
    expected = [("running", -1), ("ready", 0), ("answering add", 0), ("ready", 0), ("running", 0)]
    assert mailbox.reports[:5] == expected


def test_the_next_step_begins_before_a_slow_one_is_answered(mailbox: Mailbox) -> None:
    """Step 0 does not end before step 1 has begun."""
    mailbox.send(*plan(0, SLOW))
    mailbox.send(*plan(1, 5, 6))
    mailbox.send(Control(7, "add", (3, 4)))
    answers = [mailbox.receive() for _ in range(3)]
    assert [sum_of(answer) for answer in answers[:2]] == [SLOW, 11]
    assert answers[2] == Reply(7, True, 7)
    expected = [("running", -1), ("running", -1), ("running", 0), ("ready", 1)]
    assert [report for report in mailbox.reports if "add" not in report[0]][:4] == expected


def test_only_the_rank_that_samples_answers_steps(other_mailbox: Mailbox) -> None:
    other_mailbox.send(*plan(0, 1, 2))
    other_mailbox.send(Control(1, "add", (3, 4)))
    assert other_mailbox.receive() == Reply(1, True, 7)
    assert ("ready", 0) in other_mailbox.reports


@pytest.mark.parametrize(
    "control", [Control(3, "subtract", (1, 2)), Control(3, "add", (1,)), Control(3, "add", (1, "a"))]
)
def test_a_call_that_fails_is_answered(mailbox: Mailbox, control: Control) -> None:
    mailbox.send(control)
    reply = mailbox.receive()
    assert isinstance(reply, Reply)
    assert (reply.id, reply.ok) == (3, False)
    assert "Error" in reply.value
    mailbox.send(*plan(0, 4))
    assert sum_of(mailbox.receive()) == 4


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1\xff\x00random"],
        [os.urandom(200), os.urandom(64)],
        [msgspec.msgpack.encode(["Step", "first", [1]])],
        [msgspec.msgpack.encode(["Shutdown"])],
        [msgspec.msgpack.encode(Sampled(1, b"", b""))],
    ],
)
def test_a_malformed_frame_changes_nothing(mailbox: Mailbox, frames: list[bytes]) -> None:
    mailbox.socket.send_multipart(frames)
    mailbox.send(*plan(0, 4))
    assert sum_of(mailbox.receive()) == 4


@pytest.mark.parametrize("frames", [[], [b"\x01\x00\x00\x00"]])
def test_a_broken_plan_ends_the_worker_because_its_core_waits_for_an_answer(frames: list[bytes]) -> None:
    mailbox = Mailbox(answers=True)
    mailbox.send(plan(0, 1, 2)[0], *frames)
    mailbox.ended.wait(10)
    assert [str(error) for error in mailbox.errors] == ["the frame is short"]
    mailbox.close()


def test_an_error_inside_a_step_ends_the_worker_in_that_stage() -> None:
    mailbox = Mailbox(answers=True)
    mailbox.send(*plan(0, 1))
    mailbox.receive()
    mailbox.send(*plan(1, FAULT))
    mailbox.ended.wait(10)
    assert [str(error) for error in mailbox.errors] == ["the machine is broken"]
    assert mailbox.reports[-1] == ("running", 0)
    mailbox.close()


def run_worker(connection: Connection) -> None:
    """What a fork server does and what its fork then does, in one process."""
    worker_process.prepare()(connection)


class Worker:
    """A worker process and its core's end of the connection."""

    def __init__(self, config: WorkerConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        with theirs:
            self.process = context.Process(target=run_worker, args=(theirs,), daemon=True)
            self.process.start()
        self.connection.send_bytes(msgspec.msgpack.encode(config))

    def wait_for(self, kind: type[ChildMessage]) -> tuple[ChildMessage, list[str]]:
        """The first message of a kind, and the stages that were reported before it."""
        stages: list[str] = []
        while True:
            assert self.connection.poll(60)
            message = msgspec.msgpack.decode(self.connection.recv_bytes(), type=ChildMessage)
            if isinstance(message, kind):
                return message, stages
            if isinstance(message, Heartbeat) and message.stage not in stages:
                stages.append(message.stage)

    def exit_code(self) -> int | None:
        self.process.join(30)
        return self.process.exitcode


@pytest.fixture
def start() -> Iterator[Callable[[WorkerConfig], Worker]]:
    workers: list[Worker] = []

    def start(config: WorkerConfig) -> Worker:
        workers.append(Worker(config))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        worker.process.join()


def test_a_worker_process_from_start_to_end(tmp_path: Path, start: Callable[[WorkerConfig], Worker]) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    address = f"ipc://{tmp_path}/worker"
    with zmq.Context() as context, ipc.connect(context, address) as socket:
        socket.rcvtimeo = 60_000
        worker = start(worker_config(model, address=address))
        _, stages = worker.wait_for(Started)
        assert [stage for stage in stages if stage != "starting"] == STAGES
        assert psutil.Process(worker.process.pid).cmdline()[0] == "pyllm::worker-0-0"

        os.kill(worker.process.pid or 0, signal.SIGINT)  # Ctrl-C is for the parent.
        encode_message = msgspec.msgpack.encode
        socket.send(encode_message(Control(0, "allocate", (64, 8))))
        assert msgspec.msgpack.decode(socket.recv(), type=WorkerOutput) == Reply(0, True, None)
        planner = Planner()
        planner.start(0)
        step, frame = planner.step(Row(0, [5, 17, 200]))
        socket.send_multipart([encode_message(step), frame])
        sampled = msgspec.msgpack.decode(socket.recv(), type=WorkerOutput)
        assert isinstance(sampled, Sampled)
        expected = greedy(loaded_runner(model), Planner(), 0, [5, 17, 200], 1)
        assert np.frombuffer(sampled.tokens, np.int32).tolist() == expected

        os.kill(worker.process.pid or 0, signal.SIGTERM)
        assert worker.exit_code() == -signal.SIGTERM


def test_a_worker_ends_with_its_parent(tmp_path: Path, start: Callable[[WorkerConfig], Worker]) -> None:
    worker = start(worker_config(write_tiny_model(tmp_path), address="ipc:///nowhere"))
    worker.wait_for(Heartbeat)
    worker.connection.close()
    assert worker.exit_code() == ORPHANED_EXIT_CODE


def test_a_worker_that_cannot_load_says_why(tmp_path: Path, start: Callable[[WorkerConfig], Worker]) -> None:
    config = worker_config(write_tiny_model(tmp_path), address="ipc:///nowhere")
    (tmp_path / "model.safetensors").unlink()
    worker = start(config)
    failed, _ = worker.wait_for(Failed)
    assert isinstance(failed, Failed)
    assert failed.stage == "looking for the model's files"
    assert "model.safetensors" in failed.message
    assert worker.exit_code() == FINAL_EXIT_CODE


def test_a_worker_without_memory_says_so_with_its_exit_code(
    tmp_path: Path, start: Callable[[WorkerConfig], Worker]
) -> None:
    model = write_tiny_model(tmp_path, max_position_embeddings=1 << 30)
    worker = start(worker_config(model, address="ipc:///nowhere", max_model_len=1 << 60))
    failed, _ = worker.wait_for(Failed)
    assert isinstance(failed, Failed)
    assert failed.message.startswith("out of memory: ")
    assert worker.exit_code() == OUT_OF_MEMORY_EXIT_CODE
