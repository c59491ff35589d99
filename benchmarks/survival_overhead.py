"""What surviving costs in a step in which nobody dies: its parts timed alone, as a share of a measured step.

A step's share has an entry in the journal for each row and one look at the epoch; what is sent and read of heartbeats
counts for as long as a step takes.
"""

import asyncio
import statistics
import timeit
from collections.abc import Callable, Iterator
from multiprocessing import Pipe

import msgspec

from benchmarks.load import equal_requests, measure
from benchmarks.record import Record
from benchmarks.startup import Server
from pyllm.child import HEARTBEAT_INTERVAL
from pyllm.frontend.journal import Journal
from pyllm.messages import ChildMessage, Deltas, Heartbeat, Sampling, Submit
from pyllm.supervisor import TICK

ROWS = 8
TOKENS = 200
# Who beats in an interval: worker, core, API process and nursery to their parents, the core to its client and back, and
# parents to each of their children at every look at it.
HEARTBEATS = 4 + 2 + 4 * HEARTBEAT_INTERVAL / TICK
REPEATS, NUMBER = 20, 2000


def run() -> Iterator[Record]:
    step = _step_us()
    accept, check, heartbeat = _us(_accept()), _us(_epoch_check()), _us(_heartbeat())
    beats = HEARTBEATS * heartbeat * step / 1e6 / HEARTBEAT_INTERVAL
    yield {
        "name": "survival.overhead_percent",
        "value": round(100 * (ROWS * accept + check + beats) / step, 3),
        "unit": "%",
        "rows": ROWS,
        "accept_us": round(accept, 3),
        "epoch_check_us": round(check, 3),
        "heartbeat_us": round(heartbeat, 2),
        "step_us": round(step),
    }


def _step_us() -> float:
    """The median time between a stream's tokens, of `ROWS` streams on the embedded model."""
    with Server() as server:
        requests = equal_requests(ROWS, 16, TOKENS)
        return asyncio.run(measure(server.address, server.model(), requests, ROWS)).itl_p50_ms * 1e3


def _us(function: Callable[[], object]) -> float:
    return statistics.median(timeit.repeat(function, number=NUMBER, repeat=REPEATS)) / NUMBER * 1e6


def _accept() -> Callable[[], object]:
    """One token more of one stream."""
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


def _heartbeat() -> Callable[[], object]:
    """One sent and read, over the socket pair between parent and child."""
    ours, theirs = Pipe()
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ChildMessage)

    def beat() -> None:
        theirs.send_bytes(encoder.encode(Heartbeat("ready", 1234)))
        decoder.decode(ours.recv_bytes())

    return beat
