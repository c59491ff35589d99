"""Files on the simulated disk for a process with several threads, whose reads may also get stuck; counts each fault."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from tests.kv_transfer.stores.simulated_disk import Faults, SimulatedDisk, SimulatedFiles

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

PATIENT_THREADS = ("kv-load", "kv-lookup")


class SharedDisk:
    """A disk, and the files of all processes that have opened it.

    `stuck` is the share of reads that wait for `let_go`. Only threads for loads and look-ups get stuck: others wait
    without a time limit, such as those that open a store or write the last save.
    """

    def __init__(self, seed: int, faults: Faults, stuck: float = 0.0) -> None:
        self.disk = SimulatedDisk(seed)
        self.faults = faults
        self.stuck = stuck
        self.lock = threading.Lock()
        self.counted: Counter[str] = Counter()
        self.opened: list[SharedFiles] = []
        self.gate = threading.Event()

    @property
    def num_operations(self) -> int:
        """The operations on all files that were ever opened."""
        return sum(files.num_operations for files in self.opened)

    def open_files(self) -> "SharedFiles":
        """Files with descriptors of their own, as each process has them."""
        self.opened.append(SharedFiles(self))
        return self.opened[-1]

    def let_go(self) -> None:
        """Let reads that are stuck go on."""
        gate, self.gate = self.gate, threading.Event()
        gate.set()


def _locked(method: Callable[Concatenate[Any, Arguments], Result]) -> Callable[Concatenate[Any, Arguments], Result]:
    """One operation at a time, on all files of a disk."""

    def call(self: "SharedFiles", *args: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        with self.shared.lock:
            return method(self, *args, **keywords)

    return call


class SharedFiles(SimulatedFiles):
    """`Files` of one opener, for any of its threads."""

    make_folder = _locked(SimulatedFiles.make_folder)
    list_names = _locked(SimulatedFiles.list_names)
    open = _locked(SimulatedFiles.open)
    close = _locked(SimulatedFiles.close)
    write = _locked(SimulatedFiles.write)
    size = _locked(SimulatedFiles.size)
    has_name = _locked(SimulatedFiles.has_name)
    truncate = _locked(SimulatedFiles.truncate)
    sync_folder = _locked(SimulatedFiles.sync_folder)
    remove = _locked(SimulatedFiles.remove)
    lock = _locked(SimulatedFiles.lock)
    unlock = _locked(SimulatedFiles.unlock)
    _read_now = _locked(SimulatedFiles.read)

    def __init__(self, shared: SharedDisk) -> None:
        super().__init__(shared.disk, shared.faults)
        self.shared = shared
        self.waits = True

    def end_waits(self) -> None:
        """Nothing of this process is stuck any more, as it ends."""
        with self.shared.lock:
            self.waits = False
        self.shared.let_go()

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        with self.shared.lock:
            may_wait = self.waits and threading.current_thread().name.startswith(PATIENT_THREADS)
            is_stuck = may_wait and self.disk.random.random() < self.shared.stuck
            self.shared.counted["stuck"] += is_stuck
            gate = self.shared.gate
        if is_stuck:
            gate.wait()
        return self._read_now(fd, buffers, offset)

    def _may_fail(self) -> None:
        self._count_error("EIO", super()._may_fail)

    def _may_be_full(self) -> None:
        self._count_error("ENOSPC", super()._may_be_full)

    def _flip(self, data: bytearray) -> None:
        before = bytes(data)
        super()._flip(data)
        self.shared.counted["flipped bit"] += data != before

    def _maybe_less(self, size: int) -> int:
        less = super()._maybe_less(size)
        self.shared.counted["short"] += less < size
        return less

    def _count_error(self, name: str, operation: Callable[[], None]) -> None:
        try:
            operation()
        except OSError:
            self.shared.counted[name] += 1
            raise
