"""The record of a block in a segment: a header, the key, the value. Packs and checks bytes; does no I/O.

The checksum of the value is XXH3 of 128 bits. It protects from accidents, not from an attacker who can write to the
folder. It costs a tenth of BLAKE3 and of zlib's CRC. It misses a torn block with probability 2^-128, CRC-32 with
2^-32.
"""

import struct
import zlib
from typing import NamedTuple

from pyllm._rust import xxh3
from pyllm.kv_transfer.stores.store import Retention

MAX_KEY_BYTES = 255
# Bits of a record's state.
USED = 1  # The block was loaded since it was written.
DEAD = 2  # Its value has a wrong checksum.
LONG = 4  # It was saved again, with the retention `long`.
STATE_OFFSET = 4  # of the state in a record: the only byte that changes later, so no checksum covers it

_MAGIC = b"KVB1"
_BODY = struct.Struct("<BBBQ16s")  # retention, passes, bytes of the key, bytes of the value, its checksum
_CHECK = struct.Struct("<I")
HEADER_BYTES = len(_MAGIC) + 1 + _BODY.size + _CHECK.size
_STORED_RETENTIONS: tuple[Retention, ...] = ("default", "long")
# Evictions that a block survives without being loaded, for `long` and for each retention.
LONG_PASSES = 3
_PASSES: dict[Retention, int] = {"default": 0, "long": LONG_PASSES}


class RecordHeader(NamedTuple):
    """The header of a record. `passes`: the evictions that the block survives even if it is not loaded."""

    key: bytes
    value_bytes: int
    checksum: bytes
    retention: Retention
    passes: int
    state: int = 0

    @property
    def num_bytes(self) -> int:
        """The size of the whole record."""
        return record_bytes(len(self.key), self.value_bytes)

    def pack(self) -> bytes:
        """The packed header and key; the value comes after them."""
        body = _BODY.pack(
            _STORED_RETENTIONS.index(self.retention), self.passes, len(self.key), self.value_bytes, self.checksum
        )
        check = _CHECK.pack(zlib.crc32(self.key, zlib.crc32(body)))
        return b"".join((_MAGIC, bytes((self.state,)), body, check, self.key))

    def after_eviction(self) -> "RecordHeader | None":
        """The header of the block's copy in a newer segment when this segment is evicted; None: it is not copied."""
        if self.state & USED:
            return self._replace(state=0, passes=_PASSES[self.retention])
        return self._replace(state=0, passes=self.passes - 1) if self.passes else None


def record_bytes(key_bytes: int, value_bytes: int) -> int:
    """The size of a record."""
    return HEADER_BYTES + key_bytes + value_bytes


def checksum(value: memoryview) -> bytes:
    """The checksum of a value, 16 bytes."""
    return xxh3(value)


def new_header(key: bytes, value_bytes: int, value_checksum: bytes, retention: Retention) -> RecordHeader:
    """The header of a newly saved block."""
    return RecordHeader(key, value_bytes, value_checksum, retention, _PASSES[retention])


def read_header(data: memoryview) -> RecordHeader | None:
    """The header at the start of `data`, which also holds the key; None if the bytes are no valid header."""
    if len(data) < HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        return None
    body = data[len(_MAGIC) + 1 :][: _BODY.size]
    retention, passes, key_bytes, value_bytes, value_checksum = _BODY.unpack(body)
    key = bytes(data[HEADER_BYTES : HEADER_BYTES + key_bytes])
    (check,) = _CHECK.unpack(data[HEADER_BYTES - _CHECK.size : HEADER_BYTES])
    if check != zlib.crc32(key, zlib.crc32(body)) or len(key) < key_bytes or retention >= len(_STORED_RETENTIONS):
        return None
    state = data[STATE_OFFSET]
    if state & LONG:
        retention, passes = _STORED_RETENTIONS.index("long"), LONG_PASSES
    return RecordHeader(key, value_bytes, value_checksum, _STORED_RETENTIONS[retention], passes, state)
