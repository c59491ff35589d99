"""One segment: a file of records, which is sealed by a list of its blocks when it is full.

Readers check everything: each record has checksums, and if the list is damaged the headers are read instead. Knows
neither other segments nor which of two equal blocks is the newer one.
"""

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyllm.kv_transfer.stores.block_record import (
    DEAD,
    HEADER_BYTES,
    MAX_KEY_BYTES,
    STATE_OFFSET,
    RecordHeader,
    read_header,
    record_bytes,
)
from pyllm.kv_transfer.stores.file_layer import Files, read_fully, write_fully

_ENTRY = struct.Struct("<QQB")  # offset, bytes of the value, bytes of the key; then the key
_SEAL = struct.Struct("<4sIQ")  # magic, CRC-32 of the entries, bytes of the entries, which come before it
_SEAL_MAGIC = b"KVS1"


class Place(NamedTuple):
    """The place of a block's record in its segment. `value_bytes` is the size of the block."""

    key: bytes
    offset: int
    value_bytes: int

    @property
    def end(self) -> int:
        """The offset after its record."""
        return self.offset + self.num_bytes

    @property
    def num_bytes(self) -> int:
        """The size of its record."""
        return record_bytes(len(self.key), self.value_bytes)


class Segment:
    """One open file. `max_bytes` is its greatest size, with the list at its end.

    `end` is the offset after the last known record. In a segment that is not sealed, the next record comes there. Live
    blocks are those that this process can find here; its `BlockIndex` keeps them.
    """

    def __init__(self, files: Files, path: Path, fd: int, sequence: int, max_bytes: int) -> None:
        self.path = path
        self.fd = fd
        self.sequence = sequence
        self.max_bytes = max_bytes
        self.end = 0
        self.is_sealed = False
        self._files = files
        self._list_bytes = _SEAL.size  # size of the list that seals it, for all records so far
        self.places: dict[bytes, Place] = {}  # of its live blocks
        self.live_bytes = 0
        self.num_readers = 0
        self.is_gone = False
        self.runs: list[int] | None = None  # see `free_runs`; None: not computed since the blocks changed

    @property
    def live_share(self) -> float:
        """The share of its bytes that live blocks take."""
        return self.live_bytes / self.end if self.end else 0.0

    def in_order(self) -> list[Place]:
        """Its live blocks in order of offset."""
        return sorted(self.places.values(), key=lambda place: place.offset)

    def free_runs(self) -> list[int]:
        """The bytes of each gap between live blocks, and before its end."""
        if self.runs is None:
            self.runs = []
            position = 0
            for place in self.in_order():
                if place.offset > position:
                    self.runs.append(place.offset - position)
                position = place.end
            if self.end > position:
                self.runs.append(self.end - position)
        return self.runs

    def scan(self, *, from_start: bool = False) -> list[Place]:
        """The blocks that any process has appended since the last scan; all blocks once the segment is sealed.

        `from_start`: all blocks, as others may have truncated the file and appended again. Raises OSError; then the
        next scan finds the same blocks.
        """
        before = (self.end, self._list_bytes, self.is_sealed)
        if from_start:
            self.end, self._list_bytes, self.is_sealed = 0, _SEAL.size, False
        try:
            size = self._files.size(self.fd)
            if self.is_sealed or size <= self.end:
                return []
            listed = None if self.end else self._read_list(size)
            if listed is not None:
                return listed
            found = self._walk(size)
            listed = self._read_list(size) if self.end < size else None
        except OSError:
            self.end, self._list_bytes, self.is_sealed = before
            raise
        return found if listed is None else listed

    def header_at(self, offset: int) -> RecordHeader | None:
        """The header of the record at `offset`; None if there is none, or the file ends. Raises OSError."""
        head = memoryview(bytearray(HEADER_BYTES + MAX_KEY_BYTES))
        return read_header(head[: read_fully(self._files, self.fd, [head], offset)])

    def read(self, place: Place, into: memoryview) -> RecordHeader | None:
        """Read a block in one call; None if the record is another block's. Raises OSError.

        The caller must compare the value's checksum with that of the header.
        """
        head = memoryview(bytearray(HEADER_BYTES + len(place.key)))
        count = read_fully(self._files, self.fd, [head, into], place.offset)
        header = read_header(head)
        if header is None or count < len(head) + len(into) or header.key != place.key:
            return None
        return header if header.value_bytes == len(into) else None

    def mark(self, place: Place, state: int) -> None:
        """Write a record's state, for every process to see. Raises OSError."""
        write_fully(self._files, self.fd, [memoryview(bytes((state,)))], place.offset + STATE_OFFSET)

    def has_room(self, header: RecordHeader) -> bool:
        """Whether the record fits, with its entry in the list."""
        return self.end + header.num_bytes + self._list_bytes + _ENTRY.size + len(header.key) <= self.max_bytes

    def append(self, header: RecordHeader, value: memoryview) -> Place:
        """Write a record after the others. Raises OSError; then the segment is as it was."""
        place = Place(header.key, self.end, header.value_bytes)
        try:
            write_fully(self._files, self.fd, [memoryview(header.pack()), value], self.end)
        except OSError:
            self.truncate()
            raise
        self._advance(header)
        return place

    def truncate(self) -> None:
        """Free all bytes after the last record. Raises OSError."""
        self._files.truncate(self.fd, self.end)

    def seal(self, places: Iterable[Place]) -> None:
        """Write the list of blocks to the end. Raises OSError.

        It does not wait for the disk: a block that is lost or torn in a power loss is a miss.
        """
        entries = b"".join(_ENTRY.pack(place.offset, place.value_bytes, len(place.key)) + place.key for place in places)
        seal = _SEAL.pack(_SEAL_MAGIC, zlib.crc32(entries), len(entries))
        write_fully(self._files, self.fd, [memoryview(entries), memoryview(seal)], self.end)
        self.is_sealed = True

    def _walk(self, size: int) -> list[Place]:
        """The blocks after `end`, up to the first record that is not whole in a file of `size` bytes."""
        found = []
        while self.end < size:
            header = self.header_at(self.end)
            if header is None or self.end + header.num_bytes > size:
                break
            if not header.state & DEAD:
                found.append(Place(header.key, self.end, header.value_bytes))
            self._advance(header)
        return found

    def _advance(self, header: RecordHeader) -> None:
        self.end += header.num_bytes
        self._list_bytes += _ENTRY.size + len(header.key)

    def _read_list(self, size: int) -> list[Place] | None:
        """The list at the end of a file of `size` bytes; None if there is none."""
        tail = memoryview(bytearray(_SEAL.size))
        if size < _SEAL.size or read_fully(self._files, self.fd, [tail], size - _SEAL.size) < _SEAL.size:
            return None
        magic, check, num_bytes = _SEAL.unpack(tail)
        start = size - _SEAL.size - num_bytes
        if magic != _SEAL_MAGIC or start < 0:
            return None
        entries = memoryview(bytearray(num_bytes))
        if read_fully(self._files, self.fd, [entries], start) < num_bytes or zlib.crc32(entries) != check:
            return None
        self.end = start
        self.is_sealed = True
        return list(_unpack(entries))


def _unpack(entries: memoryview) -> Iterable[Place]:
    position = 0
    while position < len(entries):
        offset, value_bytes, key_bytes = _ENTRY.unpack_from(entries, position)
        position += _ENTRY.size + key_bytes
        yield Place(bytes(entries[position - key_bytes : position]), offset, value_bytes)
