"""Answers to requests with an Idempotency-Key, as the bytes sent: one process runs a request, all may read its record.

Calls never wait; `LocalState` waits. Knows nothing of HTTP but a status and headers.
"""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from pyllm.frontend.shared.messages import Attached, Conflict, Full, Headers, Page, Run

# Limits on records, on the bytes of all, and on the bytes of one. A token of a stream takes about 300 bytes.
MAX_RECORDS = 16_384
MAX_BYTES = 256 << 20
MAX_RECORD_BYTES = 64 << 20
PAGE_BYTES = 256 << 10
# A request without a reader runs on for this many seconds, so that the reader can come back.
READER_ABSENCE = 30.0


@dataclass(slots=True, eq=False)
class _Record:
    number: int
    key: tuple[str, str]
    digest: bytes
    origin: str
    idle_since: float  # when the last reader left, or the run ended
    member: int = -1  # the API process that runs it; -1: none
    run: int = 0
    status: int = 0
    headers: Headers = ()
    body: bytearray = field(default_factory=bytearray)
    is_over: bool = False
    readers: list[int] = field(default_factory=list)  # the API process of each

    @property
    def is_running(self) -> bool:
        return self.member >= 0


class Records:
    """All records, each kept for `retention` seconds after its end. `member` is the number of the calling API process.

    A running request keeps its record. If there is no room, the least recently used finished records lose their bytes;
    their keys stay known, so that a repeat gives the same answer. Numbers begin at `first_number`, so that the
    successor of a dead state does not mistake them for its own.
    """

    def __init__(
        self,
        retention: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_bytes: int = MAX_BYTES,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_records: int = MAX_RECORDS,
        first_number: int = 1,
    ) -> None:
        self._retention = retention
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_kept_bytes = max_bytes  # less while memory is short
        self._max_record_bytes = max_record_bytes
        self._max_records = max_records
        self._by_key: OrderedDict[tuple[str, str], _Record] = OrderedDict()  # the least recently used first
        self._by_number: dict[int, _Record] = {}
        self._by_run: dict[int, _Record] = {}
        self._waiters: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)  # by number of a record or run
        self._last_number = first_number - 1
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def claim(self, member: int, tenant: str, key: str, digest: bytes, origin: str) -> Run | Attached | Conflict | Full:
        """Start to read the answer to a request with this digest. If the answer is a `Run`, the caller must run it.

        `origin` is the event id to run it from, unless it was run before.
        """
        record = self._by_key.get((tenant, key))
        if record is None:
            if len(self._by_number) >= self._max_records:
                unused = (each for each in self._by_key.values() if not each.readers and not each.is_running)
                if (oldest := next(unused, None)) is None:
                    return Full()
                self._forget(oldest)
            record = self._add((tenant, key), digest, origin)
        elif record.digest != digest:
            return Conflict()
        self._by_key.move_to_end(record.key)
        record.readers.append(member)
        return self.take_over(member, record.number)

    def take_over(self, member: int, number: int) -> Run | Attached | Full:
        """Run a request that no process runs, from where it broke off. Only the first caller gets to run it."""
        record = self._by_number.get(number)
        if record is None:
            return Full()
        if record.is_running or record.is_over:
            return Attached(number)
        record.member, record.run = member, self._next_number()
        self._by_run[record.run] = record
        return Run(number, record.run, last_event_id(record.body) or record.origin)

    def leave(self, member: int, number: int) -> None:
        """Remove a reader that is gone."""
        record = self._by_number.get(number)
        if record is not None and member in record.readers:
            record.readers.remove(member)
            record.idle_since = self._clock()
            self._forget_if_unkept(record)

    def read(self, number: int, offset: int) -> Page | None:
        """The part of a record's body that follows `offset`; None if there is nothing yet."""
        record = self._by_number.get(number)
        if record is None or offset > len(record.body):
            return Page(is_lost=True)
        if not record.is_running and not record.is_over:
            return Page(is_orphaned=True)
        body = bytes(record.body[offset : offset + PAGE_BYTES])
        is_over = record.is_over and offset + len(body) == len(record.body)
        return Page(record.status, record.headers, body, is_over) if body or is_over else None

    def find(self, number: int, event_id: bytes) -> int:
        """The offset in a record's body that follows the event with this id; -1 if it has no such event yet."""
        record = self._by_number.get(number)
        if record is None:
            return -1
        line = b"id: " + event_id + b"\n"
        index = 0 if record.body.startswith(line) else record.body.find(b"\n\n" + line)
        return record.body.find(b"\n\n", index + 2) + 2 if index >= 0 else -1

    def wait(self, number: int, changed: Callable[[], None]) -> None:
        """Call `changed` once, when the record has changed."""
        self._waiters[number].append(changed)

    def wait_abandoned(self, run: int, abandoned: Callable[[], None]) -> None:
        """Call `abandoned` once, when the run ends or is to end for lack of readers; at once if it is over."""
        self._waiters[run].append(abandoned)
        if run not in self._by_run:
            self._wake(run)

    def start(self, run: int, status: int, headers: Headers) -> None:
        """Record the status and headers of a run. A run that took over keeps those of the first."""
        record = self._by_run.get(run)
        if record is not None and not record.status:
            record.status, record.headers = status, headers

    def append(self, run: int, body: bytes) -> None:
        """Record more of a run's body."""
        if (record := self._by_run.get(run)) is None:
            return
        record.body += body
        self.num_bytes += len(body)
        self._make_room(self._max_bytes)
        if len(record.body) > self._max_record_bytes or self.num_bytes > self._max_bytes:
            self._lose(record)
        self._wake(record.number)

    def finish(self, run: int, keep: bool) -> None:
        """End a run. An answer that is not to be kept, such as an error, stays for its present readers only."""
        if (record := self._by_run.get(run)) is None:
            return
        self._end_run(record)
        record.is_over = True
        record.idle_since = self._clock()
        if not keep:
            del self._by_key[record.key]
            self._forget_if_unkept(record)
        self._wake(record.number)

    def resize(self, share: float) -> None:
        """Keep at most this share of the bytes of finished records without readers; others keep all of theirs."""
        self._max_kept_bytes = int(share * self._max_bytes)
        self._make_room(self._max_kept_bytes, only_unread=True)

    def drop(self, member: int) -> None:
        """Remove an API process that is gone, with its readers. Another process may take over its runs."""
        for record in list(self._by_number.values()):
            if member in record.readers:
                record.readers = [each for each in record.readers if each != member]
                record.idle_since = self._clock()
            if record.member == member:
                self._end_run(record)
                if record.status and last_event_id(record.body) is None:
                    self._lose(record)  # Without ids, nobody can tell where it broke off.
                self._wake(record.number)
            self._forget_if_unkept(record)

    def sweep(self) -> None:
        """Forget old records, and end runs without readers. Call every second or so."""
        now = self._clock()
        for record in list(self._by_number.values()):
            seconds = READER_ABSENCE if record.is_running else self._retention
            if not record.readers and now - record.idle_since >= seconds:
                self._forget(record)
        self._make_room(self._max_kept_bytes, only_unread=True)

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _add(self, key: tuple[str, str], digest: bytes, origin: str) -> _Record:
        record = _Record(self._next_number(), key, digest, origin, self._clock())
        self._by_key[key] = self._by_number[record.number] = record
        return record

    def _end_run(self, record: _Record) -> None:
        record.member = -1
        self._by_run.pop(record.run, None)
        self._wake(record.run)

    def _wake(self, number: int) -> None:
        for waiter in self._waiters.pop(number, ()):
            waiter()

    def _make_room(self, max_bytes: int, *, only_unread: bool = False) -> None:
        """Drop the bytes of finished records, the least recently used first, until `max_bytes` are left."""
        if self.num_bytes > max_bytes:
            for record in list(self._by_key.values()):
                if record.is_over and record.body and not (only_unread and record.readers):
                    self._lose(record)
                    if self.num_bytes <= max_bytes:
                        return

    def _lose(self, record: _Record) -> None:
        """Drop a record, but keep its key: a repeat runs again and gives the same answer, in pieces of other sizes."""
        if self._by_key.get(record.key) is record:
            self._add(record.key, record.digest, record.origin)
        self._forget(record)

    def _forget_if_unkept(self, record: _Record) -> None:
        if not record.readers and self._by_key.get(record.key) is not record:
            self._forget(record)

    def _forget(self, record: _Record) -> None:
        if self._by_number.pop(record.number, None) is None:
            return
        self.num_bytes -= len(record.body)
        if self._by_key.get(record.key) is record:
            del self._by_key[record.key]
        self._end_run(record)
        self._wake(record.number)


def last_event_id(body: bytes | bytearray) -> str | None:
    """The id of the last event that has one."""
    _, found, rest = (b"\n\n" + body).rpartition(b"\n\nid: ")
    return rest.partition(b"\n")[0].decode("latin-1") if found else None
