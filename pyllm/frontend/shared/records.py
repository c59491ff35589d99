"""Answers to requests with an Idempotency-Key, as the bytes that went out: one runs, any number of readers follow.

Plain calls; knows no HTTP but a status and headers, and waits for nobody (`local.py` does).
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from pyllm.frontend.shared.messages import Attached, Conflict, Full, Headers, Page, Run

# Records, and their bytes together and each. A token of a stream is about 300 bytes.
MAX_RECORDS = 16_384
MAX_BYTES = 256 << 20
MAX_RECORD_BYTES = 64 << 20
PAGE_BYTES = 256 << 10
# Seconds for which a request goes on without a reader, so that one can come back.
READER_ABSENCE = 30.0


class _Record:
    def __init__(self, number: int, key: tuple[str, str], digest: bytes, origin: str) -> None:
        self.number = number
        self.key = key
        self.digest = digest
        self.origin = origin
        self.member = -1  # the API process that runs it; -1: none
        self.run = 0
        self.status = 0
        self.headers: Headers = ()
        self.body = bytearray()
        self.is_over = False
        self.is_lost = False  # its bytes are gone
        self.readers: dict[int, int] = {}  # how many each API process has
        self.idle_since = 0.0  # without readers, or over
        self.waiters: list[Callable[[], None]] = []

    @property
    def is_running(self) -> bool:
        return self.member >= 0


class Records:
    """All that is kept, for `retention` seconds after its end. `member` is the API process that calls.

    Numbers begin at `first_number`, so that those of a state that died mean nothing to the next one.
    What runs is kept whatever comes; of what is over, what was used least lately goes first where there is no room.
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
        self._by_key: OrderedDict[tuple[str, str], _Record] = OrderedDict()  # what was used last is last
        self._by_number: dict[int, _Record] = {}
        self._by_run: dict[int, _Record] = {}
        self._abandoned: dict[int, Callable[[], None]] = {}
        self._last_number = first_number - 1
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def claim(self, member: int, tenant: str, key: str, digest: bytes, origin: str) -> Run | Attached | Conflict | Full:
        """Begin to read the answer to a request; the caller has to run it where the answer says so.

        `digest` is that of the request; `origin` the event id from which it is run if it never was.
        """
        record = self._by_key.get((tenant, key))
        if record is not None and record.digest != digest:
            return Conflict()
        if record is not None and record.is_lost:
            # Run again it is the same answer, but not for those who read these bytes: they may be cut differently.
            origin = record.origin
            del self._by_key[record.key]
            self._forget_if_unkept(record)
            record = None
        if record is None:
            if len(self._by_number) >= self._max_records and not self._forget_one():
                return Full()
            record = _Record(self._next_number(), (tenant, key), digest, origin)
            self._by_key[record.key] = self._by_number[record.number] = record
        self._by_key.move_to_end(record.key)
        record.readers[member] = record.readers.get(member, 0) + 1
        return self.take_over(member, record.number)

    def take_over(self, member: int, number: int) -> Run | Attached | Full:
        """Run what nobody runs any more, from where it broke off; else just go on reading."""
        record = self._by_number.get(number)
        if record is None:
            return Full()
        if record.is_running or record.is_over:
            return Attached(number)
        record.member, record.run = member, self._next_number()
        self._by_run[record.run] = record
        return Run(number, record.run, last_event_id(record.body) or record.origin)

    def leave(self, member: int, number: int) -> None:
        """A reader is gone."""
        record = self._by_number.get(number)
        if record is None or member not in record.readers:
            return
        record.readers[member] -= 1
        if not record.readers[member]:
            del record.readers[member]
        if not record.readers:
            record.idle_since = self._clock()
            self._forget_if_unkept(record)

    def read(self, number: int, offset: int) -> Page | None:
        """What follows `offset` of a record's body; None where nothing is there yet."""
        record = self._by_number.get(number)
        if record is None or record.is_lost or offset > len(record.body):
            return Page(is_lost=True)
        if not record.is_running and not record.is_over:
            return Page(is_orphaned=True)
        body = bytes(record.body[offset : offset + PAGE_BYTES])
        is_over = record.is_over and offset + len(body) == len(record.body)
        if not body and not is_over:
            return None
        return Page(record.status, record.headers, body, is_over)

    def find(self, number: int, event_id: bytes) -> int:
        """Where in a record's body that follows which an event had this id; -1: no event has it, or not yet."""
        record = self._by_number.get(number)
        if record is None:
            return -1
        line = b"id: " + event_id + b"\n"
        place = 0 if record.body.startswith(line) else record.body.find(b"\n\n" + line)
        return record.body.find(b"\n\n", place + 2) + 2 if place >= 0 else -1

    def wait(self, number: int, changed: Callable[[], None]) -> None:
        """Call once, when a record has changed."""
        self._by_number[number].waiters.append(changed)

    def wait_abandoned(self, run: int, abandoned: Callable[[], None]) -> None:
        """Call once, when a run has nobody to run for; at once where it is over."""
        if run in self._by_run:
            self._abandoned[run] = abandoned
        else:
            abandoned()

    def start(self, run: int, status: int, headers: Headers) -> None:
        """The head of a run's answer; one that goes on with another's has the same."""
        record = self._by_run.get(run)
        if record is not None and not record.status:
            record.status, record.headers = status, headers

    def append(self, run: int, body: bytes) -> None:
        """More of a run's answer."""
        record = self._by_run.get(run)
        if record is None:
            return
        record.body += body
        self.num_bytes += len(body)
        while self.num_bytes > self._max_bytes and self._lose_one():
            pass
        if len(record.body) > self._max_record_bytes or self.num_bytes > self._max_bytes:
            self._end_run(record)
            self._lose(record)
        self._tell(record)

    def resize(self, share: float) -> None:
        """Let go of what is over beyond this share of all bytes; what runs or is read may still have all of them."""
        self._max_kept_bytes = int(share * self._max_bytes)
        self._lose_surplus()

    def finish(self, run: int, keep: bool) -> None:
        """A run is over. What is not to be kept, such as an error, is still there for those who read it."""
        record = self._by_run.get(run)
        if record is None:
            return
        self._end_run(record)
        record.is_over = True
        record.idle_since = self._clock()
        if not keep:
            del self._by_key[record.key]
            self._forget_if_unkept(record)
        self._tell(record)

    def drop(self, member: int) -> None:
        """An API process is gone: its readers, too, and what it ran waits for somebody to take it over."""
        for record in list(self._by_number.values()):
            if record.readers.pop(member, 0) and not record.readers:
                record.idle_since = self._clock()
            if record.member == member:
                self._end_run(record)
                if record.status and last_event_id(record.body) is None:
                    self._lose(record)  # Nobody can say where it broke off.
                self._tell(record)
            self._forget_if_unkept(record)

    def sweep(self) -> None:
        """Forget what is over for long enough, and stop what runs for nobody. To be called every second or so."""
        now = self._clock()
        for record in list(self._by_number.values()):
            if record.readers:
                continue
            idle = now - record.idle_since
            if not record.is_running and idle >= self._retention:
                self._forget(record)
            elif record.is_running and idle >= READER_ABSENCE:
                self._end_run(record)
                self._forget(record)
        self._lose_surplus()

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _end_run(self, record: _Record) -> None:
        if record.is_running:
            record.member = -1
            del self._by_run[record.run]
            if (abandoned := self._abandoned.pop(record.run, None)) is not None:
                abandoned()

    def _tell(self, record: _Record) -> None:
        waiters, record.waiters = record.waiters, []
        for changed in waiters:
            changed()

    def _lose_surplus(self) -> None:
        """Let go of the bytes of what is over and not being read, oldest first, while memory is short."""
        for record in self._by_key.values():
            if self.num_bytes <= self._max_kept_bytes:
                return
            if record.is_over and record.body and not record.readers:
                self._lose(record)

    def _lose_one(self) -> bool:
        """Let go of the bytes of what is over, oldest first; it stays known, so that it is run again the same."""
        for record in self._by_key.values():
            if record.is_over and record.body:
                self._lose(record)
                return True
        return False

    def _lose(self, record: _Record) -> None:
        self.num_bytes -= len(record.body)
        record.body = bytearray()
        record.status, record.headers = 0, ()
        record.is_lost = record.is_over = True

    def _forget_one(self) -> bool:
        for record in self._by_key.values():
            if record.is_over and not record.readers:
                self._forget(record)
                return True
        return False

    def _forget_if_unkept(self, record: _Record) -> None:
        if not record.readers and self._by_key.get(record.key) is not record:
            self._forget(record)

    def _forget(self, record: _Record) -> None:
        self.num_bytes -= len(record.body)
        self._by_number.pop(record.number, None)
        if self._by_key.get(record.key) is record:
            del self._by_key[record.key]
        self._tell(record)


def last_event_id(body: bytes | bytearray) -> str | None:
    """The id of the last event that has one."""
    place = body.rfind(b"\n\nid: ")
    if place < 0 and not body.startswith(b"id: "):
        return None
    start = place + len(b"\n\nid: ") if place >= 0 else len(b"id: ")
    return bytes(body[start : body.index(b"\n", start)]).decode("latin-1")
