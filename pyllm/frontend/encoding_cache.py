"""Token ids of texts that were encoded before, by the text. Encodes nothing, and belongs to one thread."""

import sys
from collections import OrderedDict

import msgspec

MAX_BYTES = 64 << 20
MAX_ENTRIES = 1 << 16
ENTRY_BYTES = 160  # of an entry beside its text and its ids: two objects and a place in the dictionary


class EncodingCounts(msgspec.Struct):
    """Tokens of texts that were looked up, and of those that were found."""

    num_queried: int = 0
    num_found: int = 0


class EncodingCache:
    """What was used last stays, within `max_bytes` (texts included) and `max_entries`."""

    def __init__(self, counts: EncodingCounts, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self.num_bytes = 0
        self._counts = counts
        self._full_size = self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._packed: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._packed)

    def get(self, text: str) -> bytes | None:
        """The packed ids of a text, if they are known."""
        packed = self._packed.get(text)
        if packed is not None:
            self._packed.move_to_end(text)
            self._counts.num_queried += len(packed) // 4
            self._counts.num_found += len(packed) // 4
        return packed

    def put(self, text: str, packed: bytes) -> None:
        """Know these ids, which were looked up and not found. A text that alone takes a quarter of all is left out."""
        self._counts.num_queried += len(packed) // 4
        size = _size(text, packed)
        if size > self._max_bytes // 4 or text in self._packed:
            return
        self._packed[text] = packed
        self.num_bytes += size
        self._evict()

    def resize(self, share: float) -> None:
        """Hold at most this share of the bytes that it was made for; what was used last stays."""
        self._max_bytes = int(share * self._full_size)
        self._evict()

    def _evict(self) -> None:
        while self.num_bytes > self._max_bytes or len(self._packed) > self._max_entries:
            self.num_bytes -= _size(*self._packed.popitem(last=False))


def _size(text: str, packed: bytes) -> int:
    return sys.getsizeof(text) + len(packed) + ENTRY_BYTES
