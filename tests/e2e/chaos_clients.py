"""Clients of a server under faults: they ask for what is known, come back where they left off, and count what differs.

Each is a thread with a request at a time. Knows HTTP and the pool of twins; knows no process.
"""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import httpx

from tests.e2e.survival_streams import Request, Transcript, compare

# A stream that says nothing for so long, not even a comment, is taken for broken; and one request lasts no longer than
# the second of these, however often it is taken up again.
SILENCE = 30.0
PATIENCE = 300.0
PAUSE = 0.2  # between two connections of one request
# What the engine says of a request that was alone with what died, by a fault of its own or by one from outside.
BLAMED = re.compile(r"this request ended the (worker|engine core) that computed it \d+ times, the last \d+ alone")

# Streams resumed by the id of an answer that is kept, and by that of one that is generated anew; whole answers asked
# for again by their key; streams whose client leaves.
WAYS = ("kept", "anew", "whole", "leaves")


class Known(NamedTuple):
    """A request and what it gets when nobody dies."""

    request: Request
    twin: Transcript


class Account:
    """What all clients have counted."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.blamed: Counter[str] = Counter()  # those that failed by design
        self.differing: Counter[str] = Counter()
        self.tokens = self.lost = self.repeated = self.resumed = self.refused = 0
        self._lock = threading.Lock()

    def enter(self, way: str, known: Known, seen: Transcript, num_connections: int, num_refusals: int) -> None:
        """One request has ended, with an end, an error, or because its client left."""
        with self._lock:
            self.requests[way] += 1
            self.tokens += seen.num_tokens
            self.resumed += num_connections > 1
            self.refused += num_refusals
            if seen.error:
                (self.blamed if BLAMED.search(seen.error) else self.failed)[seen.error] += 1
            difference = compare(known.twin, seen, is_cut=way == "leaves" or bool(seen.error))
            self.lost += difference.lost
            self.repeated += difference.repeated
            others = [other for other in difference.others if other != seen.error]
            self.differing.update(f"{known.request.name}, {way}: {other}" for other in others)

    @property
    def num_blameworthy(self) -> int:
        """Requests that failed without blame for a death, and answers that were not their twins."""
        return self.failed.total() + self.differing.total()


class Clients:
    """So many threads that ask until the `with` block ends; requests that run then are read to their end."""

    def __init__(self, address: str, pool: Sequence[Known], number: int, seed: int) -> None:
        self.account = Account()
        self._num_events = 0
        self._progress = threading.Condition()
        self._address = address
        self._pool = pool
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(random.Random(f"{seed} {name}"), f"{seed}-{name}"))
            for name in range(number)
        ]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for_events(self, number: int, limit: float) -> None:
        """Wait until clients have had so many more events with tokens, at most `limit` seconds."""
        with self._progress:
            due = self._num_events + number
            self._progress.wait_for(lambda: self._num_events >= due, limit)

    def _count_event(self) -> None:
        with self._progress:
            self._num_events += 1
            self._progress.notify_all()

    def _ask_on(self, choose: random.Random, name: str) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            known, way = choose.choice(self._pool), choose.choice(WAYS)
            asking = _Asking(self._address, known, way, f"{name}-{number}", choose)
            asking.ask(self._count_event)
            self.account.enter(way, known, asking.seen, asking.num_connections, asking.num_refusals)


class _Asking:
    """One request, through as many connections as it takes."""

    def __init__(self, address: str, known: Known, way: str, key: str, choose: random.Random) -> None:
        self.seen = Transcript()
        self.num_connections = self.num_refusals = 0
        self._url = address + known.request.path
        self._body = known.request.body
        self._headers = {"accept": "text/event-stream"} if way == "anew" else {"idempotency-key": key}
        if way == "leaves":
            self._headers = {}
        self._events_left = choose.randint(1, max(1, len(known.twin.times))) if way == "leaves" else 1 << 30
        self._is_whole = way == "whole"
        if self._is_whole:
            self._body = {name: value for name, value in self._body.items() if not name.startswith("stream")}
        self._comes_back = way != "leaves"
        self._has_left = False

    def ask(self, count_event: Callable[[], None]) -> None:
        """Ask until there is an end, an error, or the client leaves."""
        deadline = time.monotonic() + PATIENCE
        while not (self.seen.ended or self.seen.error or self._has_left):
            if time.monotonic() > deadline:
                self.seen.error = f"not answered within {PATIENCE:g} s"
                return
            if self.num_connections + self.num_refusals:
                time.sleep(PAUSE)
            try:
                self._connect(count_event)
            except httpx.TransportError:
                # Its server process has died. Without a key or ids there is no way back, as for who leaves anyway.
                self._has_left = not self._comes_back

    def _connect(self, count_event: Callable[[], None]) -> None:
        seen = self.seen
        seen.begin_connection()
        headers = self._headers | ({"last-event-id": seen.last_id} if seen.last_id else {})
        with httpx.stream("POST", self._url, json=self._body, headers=headers, timeout=SILENCE) as response:
            if response.status_code in {httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS}:
                self.num_refusals += 1
                return
            self.num_connections += 1
            if response.status_code != httpx.codes.OK:
                seen.error = f"{response.status_code}: {response.read().decode():.300}"
            elif self._is_whole:
                seen.feed_whole(response.read())
            else:
                self._read(response, count_event)

    def _read(self, response: httpx.Response, count_event: Callable[[], None]) -> None:
        for line in response.iter_lines():
            num_events = len(self.seen.times)
            self.seen.feed(line)
            if len(self.seen.times) > num_events:
                count_event()
            if len(self.seen.times) >= self._events_left:
                self._has_left = True
                return
