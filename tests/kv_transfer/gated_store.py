"""A store whose calls of one kind wait until a test opens its gate."""

import threading
from collections.abc import Sequence
from typing import Literal

from pyllm.kv_transfer.stores.store import Retention
from tests.kv_transfer.dict_store import DictStore


class GatedStore(DictStore):
    """Counts the calls of the `gated` method; the first one sets `has_begun`."""

    def __init__(self, name: str, gated: Literal["lookup", "load", "save"]) -> None:
        super().__init__(name)
        self.gate, self.has_begun, self.num_calls = threading.Event(), threading.Event(), 0
        self._gated = gated

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        self._pass("lookup")
        return super().lookup(keys)

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        self._pass("load")
        return super().load(keys, into)

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        self._pass("save")
        return super().save(keys, blocks, retention)

    def _pass(self, method: str) -> None:
        if method == self._gated:
            self.num_calls += 1
            self.has_begun.set()
            self.gate.wait()
