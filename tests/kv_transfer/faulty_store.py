"""A store that fails at random, by a seed: blocks are missing, shortened or damaged, calls raise, and some calls do not
return until `let_go`."""

import random
import threading
from collections.abc import Sequence

from pyllm.kv_transfer.stores.store import KVStore, Retention, StoreStats


class FaultyStore:
    """`rate` is the share of calls that fail. A load that is stuck returns at `let_go`, whole but too late.

    If `forced` is set, each call has this fault, if it can, and no random one; empty: no fault.
    """

    def __init__(self, store: KVStore, seed: int, rate: float) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._rate = rate
        self._lock = threading.Lock()
        self._gate = threading.Event()
        self.forced: str | None = None
        self.num_faults = 0
        self.num_stuck = 0
        self._num_waiting = 0

    def let_go(self) -> None:
        """Let calls that are stuck return."""
        self._gate.set()
        self._gate = threading.Event()

    def num_waiting(self) -> int:
        """Calls that are stuck now."""
        return self._num_waiting

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        match self._fault("raise", "lie"):
            case "raise":
                raise OSError("the disk is gone")
            case "lie":
                return [True] * len(keys)
        return self._store.lookup(keys)

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        fault = self._fault("raise", "miss", "damage", "stuck")
        gate = self._gate
        if fault == "raise":
            raise OSError("an error of the medium")
        if fault == "stuck":
            with self._lock:
                self.num_stuck += 1
                self._num_waiting += 1
            gate.wait()
            with self._lock:
                self._num_waiting -= 1
        loaded = self._store.load(keys, into)
        if fault in {"miss", "damage"}:
            # A checksum has found it, and the buffer holds rubbish.
            at = self._random.randrange(len(keys))
            into[at][:] = bytes([0x55]) * len(into[at])
            loaded[at] = False
        return loaded

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        match self._fault("raise", "full"):
            case "raise":
                raise OSError("no space left on device")
            case "full":
                return [False] * len(keys)
        return self._store.save(keys, blocks, retention)

    def stats(self) -> list[StoreStats]:
        return self._store.stats()

    def close(self) -> None:
        self.let_go()
        self._store.close()

    def _fault(self, *kinds: str) -> str:
        if self.forced is not None:
            return self.forced if self.forced in kinds else ""
        with self._lock:
            if self._random.random() >= self._rate:
                return ""
            self.num_faults += 1
            return self._random.choice(kinds)
