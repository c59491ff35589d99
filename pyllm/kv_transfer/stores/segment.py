"""One segment: a file that records of blocks are appended to, and that is sealed by a list of them when it is full.

A reader trusts nothing in it: each record checks itself, and where the list is damaged the headers are walked. Does not
know which segments there are, and which of two equal blocks is the newer one.
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

_ENTRY = struct.Struct("<QQB")  # offset, bytes of the value, bytes of the key, which follows
_SEAL = struct.Struct("<4sIQ")  # magic, CRC-32 of the entries, bytes of the entries in front
_SEAL_MAGIC = b"KVS1"


class Place(NamedTuple):
    """Where a block lies within its segment. `value_bytes` is the size of the block."""

    key: bytes
    offset: int
    value_bytes: int

    @property
    def end(self) -> int:
        """The offset behind its record."""
        return self.offset + self.num_bytes

    @property
    def num_bytes(self) -> int:
        """Of its record."""
        return record_bytes(len(self.key), self.value_bytes)


class Segment:
    """One open file. `max_bytes` is the most that it ever takes, the list at its end included.

    `end` is the offset behind the last record that is known; where a segment is not sealed, the next one comes there.
    """

    def __init__(self, files: Files, path: Path, fd: int, sequence: int, max_bytes: int) -> None:
        self.path = path
        self.fd = fd
        self.sequence = sequence
        self.max_bytes = max_bytes
        self.end = 0
        self.is_sealed = False
        self._files = files
        self._list_bytes = _SEAL.size  # what the list takes once it is written

    def scan(self) -> list[Place]:
        """The blocks that were appended since the last scan, by whichever process; all of them once it is sealed.

        Raises OSError; then the next scan finds the same.
        """
        size = self._files.size(self.fd)
        if self.is_sealed or size <= self.end:
            return []
        if self.end == 0 and (listed := self._read_list(size)) is not None:
            return listed
        before = (self.end, self._list_bytes)
        try:
            found = self._walk(size)
            listed = self._read_list(size) if self.end < size else None
        except OSError:
            self.end, self._list_bytes = before
            raise
        return found if listed is None else listed

    def scan_anew(self) -> list[Place]:
        """All blocks, as this process has never read it: others may have cut it and gone on. Raises OSError."""
        before = (self.end, self._list_bytes, self.is_sealed)
        self.end, self._list_bytes, self.is_sealed = 0, _SEAL.size, False
        try:
            return self.scan()
        except OSError:
            self.end, self._list_bytes, self.is_sealed = before
            raise

    def header_at(self, offset: int) -> RecordHeader | None:
        """The header of the record there; None where there is none, or the file ends. Raises OSError."""
        head = memoryview(bytearray(HEADER_BYTES + MAX_KEY_BYTES))
        return read_header(head[: read_fully(self._files, self.fd, [head], offset)])

    def read(self, place: Place, into: memoryview) -> RecordHeader | None:
        """Read a block in one call; None where the record is not that block's. Raises OSError.

        The value is not checked: the caller compares its checksum with the header's.
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
        """Write a record behind the others. Raises OSError; then the segment is as it was."""
        place = Place(header.key, self.end, header.value_bytes)
        try:
            write_fully(self._files, self.fd, [memoryview(header.pack()), value], self.end)
        except OSError:
            self.cut()
            raise
        self._advance(header)
        return place

    def cut(self) -> None:
        """Give back what lies behind the last record. Raises OSError."""
        self._files.truncate(self.fd, self.end)

    def seal(self, places: Iterable[Place]) -> None:
        """List the blocks at the end. Raises OSError.

        Nothing waits for the medium: a block that a power loss takes or tears is a miss.
        """
        entries = b"".join(_ENTRY.pack(place.offset, place.value_bytes, len(place.key)) + place.key for place in places)
        seal = _SEAL.pack(_SEAL_MAGIC, zlib.crc32(entries), len(entries))
        write_fully(self._files, self.fd, [memoryview(entries), memoryview(seal)], self.end)
        self.is_sealed = True

    def _walk(self, size: int) -> list[Place]:
        """The blocks from the end that is known on, up to the first record that is not whole in a file of that size."""
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
        """The list at the end of a file of that size; None where it has none."""
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


def free_runs(segment: Segment, places: Iterable[Place]) -> list[int]:
    """The bytes of each stretch between the blocks that can be found, given by offset, up to the segment's end."""
    runs = []
    position = 0
    for place in places:
        if place.offset > position:
            runs.append(place.offset - position)
        position = max(position, place.end)
    return [*runs, segment.end - position] if segment.end > position else runs
