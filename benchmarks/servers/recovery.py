"""Seconds from a SIGKILL to the next token of every stream: the embedded model, eight streams, from outside.

`value` is the last stream's, `p50` is of all streams, `without` is the figure without a spare core.
"""

import itertools
import json
import os
import signal
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

from benchmarks.record import Record
from benchmarks.servers.startup import Server

STREAMS = 8
TOKENS = 2000  # of each stream, far more than come before and after the kill
SERVERS, KILLS = 2, 3  # few kills of each server: every death within a minute makes the next restart wait longer
SETTLE = 2.5  # seconds in which a spare core takes the place of the one that was used
# Tokens within this time of the kill were in flight already.
ON_ITS_WAY = 0.1
PATIENCE = 60.0


def worker() -> Iterator[Record]:
    yield _figure("recovery.worker_s", "pyllm::worker-0-0")


def core() -> Iterator[Record]:
    without = statistics.median(map(max, _pauses("pyllm::core-0", "--no-warm-spares")))
    yield {**_figure("recovery.core_s", "pyllm::core-0"), "without": round(without, 2)}


FIGURES: dict[str, Callable[[], Iterator[Record]]] = {
    "recovery.worker_s": worker,
    "recovery.core_s": core,
}


def _figure(name: str, title: str) -> Record:
    pauses = _pauses(title)
    last = [max(of_streams) for of_streams in pauses]
    return {
        "name": name,
        "value": round(statistics.median(last), 2),
        "unit": "s",
        "p50": round(statistics.median(itertools.chain(*pauses)), 2),
        "worst": round(max(last), 2),
        "streams": STREAMS,
    }


def _pauses(title: str, *flags: str) -> list[list[float]]:
    """Seconds from each kill until each of the streams continues."""
    pauses = []
    for _ in range(SERVERS):
        with Server(*flags) as server:
            model = server.model()
            for _ in range(KILLS):
                time.sleep(SETTLE)
                streams = [_Stream(server.address, model, number) for number in range(STREAMS)]
                begun = time.monotonic()
                for stream in streams:
                    stream.wait_for_token(begun)
                killed = time.monotonic()
                _kill(server, title)
                pauses.append([stream.wait_for_token(killed + ON_ITS_WAY) - killed for stream in streams])
                for stream in streams:
                    stream.leave()
    return pauses


def _kill(server: Server, title: str) -> None:
    (process,) = [process for process in server.processes() if process.cmdline()[:1] == [title]]
    os.kill(process.pid, signal.SIGKILL)


class _Stream:
    """One stream, read by a thread: when its last event came."""

    def __init__(self, address: str, model: str, number: int) -> None:
        body = {
            "model": model,
            "prompt": f"Story number {number}: once upon a time",
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        self._request = urllib.request.Request(
            f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        self._changed = threading.Condition()
        self._times: list[float] = []
        self._has_left = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def wait_for_token(self, since: float) -> float:
        """The time of the first event after an instant, both by `time.monotonic`.

        Raises:
            RuntimeError: there was none: the stream has ended, or hangs.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._times[-1:] > [since], PATIENCE):
                raise RuntimeError(f"a stream had no token for {PATIENCE:g} s after a kill")
            return next(when for when in self._times if when > since)

    def leave(self) -> None:
        """Close the connection."""
        self._has_left = True
        self._thread.join()

    def _read(self) -> None:
        with urllib.request.urlopen(self._request, timeout=PATIENCE) as response:
            for line in response:
                if self._has_left:
                    return
                if line.startswith(b"data: {"):
                    with self._changed:
                        if b'"error"' in line:
                            raise RuntimeError(line.decode())
                        self._times.append(time.monotonic())
                        self._changed.notify_all()
