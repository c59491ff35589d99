"""A worker with an empty model: it reads every array of each plan and answers at once. No torch.

Measurements with it are of the control plane: scheduler, wire, executor, commit, client.
"""

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
import zmq

from pyllm.config.process_config import WorkerConfig
from pyllm.supervision.parent_link import attach, await_configuration
from pyllm.wire.messages import Control, Reply, Sampled, Step, WorkerInput
from pyllm.wire.plan_layout import PLAN_SECTIONS, plan_offsets

TOKEN = 7  # the sampled token of every position


def prepare() -> Callable[[Connection, int | None], None]:
    """Return the main function of forks; replaces the real worker's `prepare`."""
    return main


def main(connection: Connection, host_memory: int | None = None) -> None:
    """Run a worker."""
    serve(msgspec.msgpack.decode(await_configuration(connection), type=WorkerConfig), connection)


def serve(config: WorkerConfig, connection: Connection) -> None:
    """Answer until the process is ended."""
    child = attach(connection, f"pyllm::worker-{config.core_index}-{config.rank}")
    socket = zmq.Context().socket(zmq.DEALER)
    socket.bind(config.address)
    child.started(config.address)
    decoder = msgspec.msgpack.Decoder(WorkerInput)
    encoder = msgspec.msgpack.Encoder()
    while True:
        header, *frames = socket.recv_multipart()
        match decoder.decode(header):
            case Step(step, counts):
                answer: Reply | Sampled = sample(step, counts, frames[0])
            case Control(number, method, _):
                answer = Reply(number, method in METHODS, METHODS.get(method))
        if config.rank == 0 or isinstance(answer, Reply):
            socket.send(encoder.encode(answer))


# num_blocks: enough for 256 rows of 2,048 tokens in blocks of 16.
METHODS: dict[str, Any] = {
    "num_blocks": 32_768,
    "num_host_blocks": 0,
    "allocate": None,
    "swap_seconds": 0.0,
    "token_seconds": 0.0,
    "statistics": {},
    "instruction_set": "none",
}


def sample(step: int, counts: tuple[int, ...], frame: bytes) -> Sampled:
    """Touch every element of the plan, and answer each sampled position with the same token."""
    starts = b""
    sampled = 0
    for (name, element), offset, count in zip(PLAN_SECTIONS, plan_offsets(counts), counts, strict=False):
        section = np.frombuffer(frame, {"i": np.int32, "f": np.float32, "B": np.uint8}[element], count, offset)
        section.sum()
        if name == "sampled_starts":
            starts = section.tobytes()
            sampled = int(section[-1])
    return Sampled(step, starts, np.full(sampled, TOKEN, np.int32).tobytes())
