"""The disk store on real files: what it keeps, for whom, and what it tells."""

import errno
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyllm.errors import ConfigError
from pyllm.kv_transfer.stores.disk_store import DiskStore
from pyllm.kv_transfer.stores.file_layer import SystemFiles
from tests.kv_transfer.stores.blocks import BLOCK_BYTES, key_of, load, lookup, save, value_of
from tests.kv_transfer.stores.simulated_disk import Faults, SimulatedDisk, SimulatedFiles

CAPACITY = 64 << 10  # 8 segments of 9 blocks each


class UnsyncedFiles(SystemFiles):
    """Waits for no disk: nothing here loses power."""

    def sync_folder(self, folder: Path) -> None:
        pass


class KeepingFiles(UnsyncedFiles):
    """While it `keeps` names, the folder may not be changed, and its files may."""

    keeps = False

    def remove(self, path: Path) -> None:
        if self.keeps:
            raise PermissionError(errno.EACCES, "the folder is read-only", str(path))
        super().remove(path)


def open_store(folder: Path, capacity: int = CAPACITY) -> DiskStore:
    return DiskStore(folder, capacity, UnsyncedFiles())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "by the store"


@pytest.fixture
def store(folder: Path) -> Generator[DiskStore, None, None]:
    store = open_store(folder)
    yield store
    store.close()


def num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.segment"))


def test_blocks_survive_a_restart(folder: Path) -> None:
    for _ in range(3):
        store = open_store(folder)
        save(store, range(25))
        assert load(store, range(25)) == list(range(25))
        store.close()
    assert store.stats()[0].num_saved == 0
    assert len(list(folder.glob("*.segment"))) == 3  # A process goes on where the one before has stopped.


def test_two_processes_share_what_they_save(folder: Path, store: DiskStore) -> None:
    other = open_store(folder)
    save(store, range(15))
    assert lookup(other, range(20)) == list(range(15))
    assert other.stats()[0].num_blocks == 15
    assert save(other, range(20)) == [True] * 20
    assert store.stats()[0].num_blocks == 20
    assert other.stats()[0].num_saved == 5
    assert load(store, range(20)) == list(range(20))
    other.close()


def test_the_bound_holds_and_the_oldest_blocks_go(folder: Path, store: DiskStore) -> None:
    for number in range(200):
        assert save(store, [number]) == [True]
        assert num_bytes(folder) <= CAPACITY
    kept = lookup(store, range(200))
    assert kept == list(range(kept[0], 200))
    assert len(kept) >= 54
    assert store.stats()[0].num_evicted == 200 - len(kept)


def test_blocks_that_are_loaded_stay(folder: Path, store: DiskStore) -> None:
    """Also where another process has loaded them."""
    other = open_store(folder)
    save(store, range(3))
    for number in range(100, 220):
        save(store, [number])
        assert load(other, [1]) == [1]
    assert lookup(store, range(3)) == [1]
    other.close()


def test_a_segment_that_another_process_writes_is_not_copied(folder: Path, store: DiskStore) -> None:
    """Its blocks stay, so they must not take the room of those that are evicted."""
    other = open_store(folder)
    save(other, range(4))
    save(store, range(10, 19))
    assert load(store, [*range(4), *range(10, 14)]) == [*range(4), *range(10, 14)]
    for number in range(100, 200):
        save(store, [number])
        if store.stats()[0].num_evicted:
            break
    assert lookup(store, range(20)) == [*range(4), *range(10, 14)]
    other.close()


def test_a_long_retention_outlives_the_default(store: DiskStore) -> None:
    save(store, range(3), "default")
    save(store, range(3, 6), "long")
    assert save(store, range(6, 9), "none") == [False] * 3
    save(store, range(100, 200))
    assert lookup(store, range(9)) == [3, 4, 5]
    for start in range(200, 500, 10):
        save(store, range(start, start + 10))
    assert lookup(store, range(9)) == []


def test_a_block_that_is_there_is_kept_longer_from_when_that_is_asked_for(folder: Path, store: DiskStore) -> None:
    """Also where another process has saved it, and again when its passes are used up."""
    other = open_store(folder)
    save(store, range(4), "default")
    num_saved = store.stats()[0].num_saved
    assert save(other, range(1, 3), "long") == [True] * 2
    assert (store.stats()[0].num_saved, other.stats()[0].num_saved) == (num_saved, 0), "nothing is written again"
    other.close()
    for start in range(100, 600, 100):
        save(store, range(start, start + 100))
        assert lookup(store, range(4)) == [1, 2]
        save(store, range(1, 3), "long")
    save(store, range(1, 3), "default")
    save(store, range(600, 1100))
    assert lookup(store, range(4)) == []


def test_used_blocks_never_take_all_of_the_store(store: DiskStore) -> None:
    save(store, range(70))
    for number in range(1000, 1040):
        load(store, range(70))
        assert save(store, [number]) == [True]
    assert lookup(store, range(1030, 1040)) == list(range(1030, 1040))


def test_a_segment_of_dead_blocks_is_compacted_before_the_oldest_goes(folder: Path) -> None:
    """Two processes that saved the same blocks at once, of which each has its own."""
    store, other = open_store(folder), open_store(folder)
    save(store, range(9))
    hidden = [path.rename(path.with_suffix(".hidden")) for path in folder.glob("*.segment")]
    blind = open_store(folder)
    save(blind, range(8))  # What the other has saved meanwhile does not show.
    for path in hidden:
        path.rename(path.with_suffix(".segment"))
    blind.close()
    store.close()
    other.close()
    store = open_store(folder)
    save(store, range(100, 110))
    before = store.stats()[0]
    save(store, range(110, 150))
    after = store.stats()[0]
    assert before.longest_free_run_bytes > 7 * BLOCK_BYTES
    assert after.num_compactions == 1
    assert after.longest_free_run_bytes == 0
    assert lookup(store, range(9)) == list(range(9))
    store.close()


def test_fragmentation_is_told(folder: Path, store: DiskStore) -> None:
    save(store, range(9))
    (path,) = folder.glob("*.segment")
    content = bytearray(path.read_bytes())
    size = len(content) // 9
    for number in (2, 3, 6):
        content[(number + 1) * size - 1] ^= 1
    path.write_bytes(content)
    assert load(store, range(9)) == [0, 1, 4, 5, 7, 8]
    stats = store.stats()[0]
    assert (stats.num_blocks, stats.num_corrupt) == (6, 3)
    assert (stats.used_bytes, stats.live_bytes) == (9 * size, 6 * size)
    assert (stats.num_free_runs, stats.longest_free_run_bytes) == (2, 2 * size)


def test_a_lower_bound_holds_from_the_start(folder: Path) -> None:
    store = open_store(folder)
    save(store, range(70))
    store.close()
    smaller = open_store(folder, CAPACITY // 4)
    assert num_bytes(folder) <= CAPACITY // 4
    assert save(smaller, [100]) == [True]
    assert lookup(smaller, [69, 100]) == [69, 100]
    smaller.close()


def test_files_that_somebody_deletes_are_missed(folder: Path, store: DiskStore) -> None:
    other = open_store(folder)
    save(store, range(20))
    for path in folder.glob("*.segment"):
        path.unlink()
    save(other, range(100, 110))
    assert lookup(store, range(20)) == []
    assert save(store, range(20)) == [True] * 20
    assert load(other, range(20)) == list(range(20))
    other.close()


def test_a_folder_that_somebody_deletes_is_made_anew(folder: Path, store: DiskStore) -> None:
    other = open_store(folder)
    save(store, range(15))
    assert lookup(other, range(15)) == list(range(15))
    shutil.rmtree(folder.parent)
    assert (lookup(store, range(15)), lookup(other, range(15))) == ([], [])
    assert (store.stats()[0].num_blocks, store.stats()[0].used_bytes) == (0, 0)
    assert save(store, range(20)) == [True] * 20
    assert load(other, range(20)) == list(range(20))
    other.close()


class BusyFiles(UnsyncedFiles):
    """Another process holds the folder's lock while it `is_busy`. Counts the times that somebody waits for it."""

    is_busy = False
    num_waits = 0

    def lock(self, fd: int, seconds: float = 0.0) -> bool:
        self.num_waits += self.is_busy and seconds > 0
        return not (self.is_busy and seconds > 0) and super().lock(fd, seconds)


def test_a_batch_waits_once_for_the_lock_of_the_folder(folder: Path) -> None:
    files = BusyFiles()
    store = DiskStore(folder, CAPACITY, files)
    files.is_busy = True
    assert save(store, range(5)) == [False] * 5
    assert (files.num_waits, store.stats()[0].num_failed_saves) == (1, 5)
    files.is_busy = False
    assert save(store, range(5)) == [True] * 5
    store.close()


def test_a_folder_that_loses_no_name_keeps_all_but_one_segment(folder: Path) -> None:
    files = KeepingFiles()
    store = DiskStore(folder, CAPACITY, files)
    save(store, range(200))
    before = lookup(store, range(200))
    files.keeps = True
    assert not all(save(store, range(200, 230)))
    assert len(load(store, before)) >= len(before) - 9
    files.keeps = False
    assert save(store, range(200, 230)) == [True] * 30
    assert num_bytes(folder) <= CAPACITY
    store.close()


def test_a_block_of_another_size_is_not_found(store: DiskStore) -> None:
    save(store, [1])
    assert store.load([key_of(1)], [memoryview(bytearray(BLOCK_BYTES - 1))]) == [False]
    assert load(store, [1]) == [1]


def test_a_block_that_is_too_large_is_not_kept(store: DiskStore) -> None:
    assert store.save([key_of(1), b"k" * 256], [memoryview(bytes(8000)), memoryview(b"value")]) == [False, False]
    assert store.stats()[0].num_failed_saves == 2


def test_a_full_disk_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles(SimulatedDisk(0))
    store = DiskStore(Path("/kv"), CAPACITY, files)
    assert save(store, range(3)) == [True] * 3
    files.faults = Faults(full=1.0)
    assert save(store, range(6)) == [True] * 3 + [False] * 3
    assert load(store, range(6)) == [0, 1, 2]
    (told,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "/kv: [Errno 28]" in told.getMessage()


@pytest.mark.parametrize(("capacity", "num_block_bytes"), [(CAPACITY, 8000), (4 << 30, 33 << 20)])
def test_a_block_that_is_too_large_is_kept_with_the_size_that_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture, capacity: int, num_block_bytes: int
) -> None:
    block = memoryview(bytes(num_block_bytes))
    store = open_store(folder, capacity)
    assert store.save([key_of(1)], [block]) == [False]
    store.close()
    (told,) = re.findall(r"at least (\d+) are needed", caplog.text)
    for size, is_kept in ((int(told) - 1, False), (int(told), True)):
        store = open_store(folder, size)
        assert store.save([key_of(1)], [block]) == [is_kept]
        store.close()


def test_a_folder_that_cannot_be_used_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file of the KV store cannot be used: .*File exists"):
        open_store(tmp_path / "file")


def test_threads_save_and_load_at_once(folder: Path, store: DiskStore) -> None:
    other = open_store(folder)

    def work(number: int) -> int:
        mine = (store, other)[number % 2]
        save(mine, range(number, number + 5))
        return len(load(mine, range(number + 10)))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(80))) > 80
    assert num_bytes(folder) <= CAPACITY
    other.close()


class BlockedFiles(UnsyncedFiles):
    """Each write waits until it may, as on a disk that hangs."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.writes = threading.Event()

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.writes.set()
        self.may_write.wait()
        return super().write(fd, buffers, offset)


def test_a_write_that_hangs_holds_up_no_lookup_and_no_load_of_a_used_block(folder: Path, store: DiskStore) -> None:
    save(store, range(5))
    load(store, range(5))  # The first load of a block writes that it was used.
    files = BlockedFiles()
    slow = DiskStore(folder, CAPACITY, files)
    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(save, slow, range(5, 8))
        files.writes.wait()
        try:
            assert lookup(slow, range(8)) == list(range(5))
            assert load(slow, [*range(5), 9]) == list(range(5))
            assert slow.stats()[0].num_blocks == 5
        finally:
            files.may_write.set()
        assert saving.result() == [True] * 3
    slow.close()


def test_no_file_stays_open(folder: Path) -> None:
    before = os.listdir("/proc/self/fd")
    store, other = open_store(folder), open_store(folder)
    for start in range(0, 120, 10):
        save(store, range(start, start + 10))
        load(other, range(start))
    store.close()
    other.close()
    assert os.listdir("/proc/self/fd") == before


def test_stats_count_bytes(store: DiskStore) -> None:
    save(store, range(4))
    load(store, range(6))
    stats = store.stats()[0]
    assert stats.tier == "disk"
    assert (stats.num_saved, stats.saved_bytes) == (4, 4 * len(value_of(0)))
    assert (stats.num_loaded, stats.loaded_bytes, stats.num_absent) == (4, 4 * len(value_of(0)), 2)
    assert (stats.capacity_bytes, stats.num_blocks) == (CAPACITY, 4)


class StuckFiles(SimulatedFiles):
    """Operations of the kind `stuck` wait for the gate. A descriptor that is not open raises KeyError."""

    stuck = ""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk)
        self.gate, self.has_begun = threading.Event(), threading.Event()

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._wait("read")
        return super().read(fd, buffers, offset)

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._wait("write")
        return super().write(fd, buffers, offset)

    def _wait(self, kind: str) -> None:
        if kind == self.stuck:
            self.has_begun.set()
            self.gate.wait()


@pytest.mark.parametrize(
    ("stuck", "call", "result"),
    [("read", load, [2]), ("read", lookup, []), ("write", save, [True, True, False])],
)
def test_close_waits_for_no_call_and_those_after_it_touch_no_file(
    stuck: str, call: Callable[[DiskStore, list[int]], list[int]], result: list[int]
) -> None:
    files = StuckFiles(SimulatedDisk(seed=1))
    store = DiskStore(Path("/kv"), CAPACITY, files)
    save(store, range(3))
    files.stuck = stuck
    with ThreadPoolExecutor(1) as threads:
        under_way = threads.submit(call, store, [2, 3, 4])
        files.has_begun.wait()
        store.close()
        num_operations = files.num_operations
        assert (load(store, [1]), lookup(store, [1]), files.num_operations) == ([], [], num_operations)
        files.gate.set()
        assert under_way.result() == result
    assert not files.open_files
    num_operations = files.num_operations
    assert (load(store, [1]), lookup(store, [1]), save(store, [1, 9])) == ([], [], [False, False])
    store.close()
    assert files.num_operations == num_operations
