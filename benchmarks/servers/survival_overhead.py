"""The cost of crash recovery in a step without a crash: its parts timed alone, as a share of a measured step.

A step has an entry in the journal for each row, one check of the epoch, and the core's record in its black box;
heartbeats that are sent and read count for the duration of a step.
"""

import asyncio
import statistics
import timeit
from collections.abc import Callable, Iterator
from multiprocessing import Pipe

import msgspec

from benchmarks.record import Record
from benchmarks.servers.load import equal_requests, measure
from benchmarks.servers.startup import Server
from pyllm._rust import Scheduler
from pyllm.client.journal import Journal
from pyllm.supervision import step_trace
from pyllm.supervision.child_process import TICK
from pyllm.supervision.step_trace import StepTrace
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import Deltas, Heartbeat, Sampling, Submit
from pyllm.wire.supervision_messages import ChildMessage

ROWS = 8
MANY_ROWS = 256
TOKENS = 200
# Heartbeats in an interval: worker, core and API process to their parents, the core to its client and back, and parents
# to each of their children at every check.
HEARTBEATS = 3 + 2 + 3 * HEARTBEAT_INTERVAL / TICK
REPEATS, NUMBER = 20, 2000


def run() -> Iterator[Record]:
    step = _step_us()
    accept, check, heartbeat = _us(_accept()), _us(_epoch_check()), _us(_heartbeat())
    note, long_note = _us(_note(ROWS)), _us(_note(MANY_ROWS))
    beats = HEARTBEATS * heartbeat * step / 1e6 / HEARTBEAT_INTERVAL
    yield {
        "name": "survival.overhead_percent",
        "value": round(100 * (ROWS * accept + check + note + beats) / step, 3),
        "unit": "%",
        "rows": ROWS,
        "accept_us": round(accept, 3),
        "epoch_check_us": round(check, 3),
        "note_us": round(note, 2),
        f"note_{MANY_ROWS}_rows_us": round(long_note, 2),
        "heartbeat_us": round(heartbeat, 2),
        "step_us": round(step),
    }


def _step_us() -> float:
    """The median time between a stream's tokens, of `ROWS` streams on the embedded model."""
    with Server() as server:
        requests = equal_requests(ROWS, 16, TOKENS)
        return asyncio.run(measure(server.address, server.model(), requests, ROWS))["itl_p50_ms"] * 1e3


def _us(function: Callable[[], object]) -> float:
    return statistics.median(timeit.repeat(function, number=NUMBER, repeat=REPEATS)) / NUMBER * 1e6


def _accept() -> Callable[[], object]:
    """Accept one more token of one stream."""
    journal = Journal(Submit(epoch=1, request=1, prompt=b"", seed=1, max_tokens=1 << 30, sampling=Sampling()), 0.0)
    offset = 0

    def accept() -> None:
        nonlocal offset
        journal.accept(0, offset, [17])
        offset += 1

    return accept


def _epoch_check() -> Callable[[], object]:
    deltas, epoch = Deltas(7, b"", b"", b"", b"", b"", b"", b""), 7
    return lambda: deltas.epoch != epoch


def _note(num_rows: int) -> Callable[[], object]:
    """Record one step, and its end."""
    scheduler = Scheduler(
        block_size=16,
        num_blocks=2 * num_rows,
        max_num_seqs=num_rows,
        max_num_batched_tokens=num_rows,
        max_model_len=16,
        vocab_size=32,
    )
    for request in range(num_rows):
        scheduler.add(0, request, bytes(4), seed=0, max_tokens=8)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert plan.num_rows == num_rows
    box = StepTrace(bytearray(step_trace.size(num_rows)), epoch=1)

    def note() -> None:
        scheduler.note_step(plan, box.note(plan.step))
        box.end(plan.step)

    return note


def _heartbeat() -> Callable[[], object]:
    """Send and read one heartbeat, over the socket pair between parent and child."""
    ours, theirs = Pipe()
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ChildMessage)

    def beat() -> None:
        theirs.send_bytes(encoder.encode(Heartbeat("ready", 1234)))
        decoder.decode(ours.recv_bytes())

    return beat
