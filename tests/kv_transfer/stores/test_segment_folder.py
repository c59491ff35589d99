from pathlib import Path

import pytest

from pyllm.kv_transfer.stores.file_layer import SystemFiles
from pyllm.kv_transfer.stores.segment_folder import FolderBusyError, SegmentFolder
from tests.kv_transfer.stores.simulated_disk import Faults, KilledError, SimulatedDisk, SimulatedFiles


def new_folder(path: Path) -> SegmentFolder:
    folder = SegmentFolder(SystemFiles(), path)
    folder.refresh()
    return folder


def test_others_learn_what_one_makes_and_removes(tmp_path: Path) -> None:
    one, other = new_folder(tmp_path), new_folder(tmp_path)
    segment = one.create(100)
    assert other.taken_bytes() == 0
    assert other.refresh() == []
    assert other.taken_bytes() == 100
    one.release(segment)
    seen = other.segments[segment.path.name]
    assert one.remove(segment)
    assert other.refresh() == [seen]
    assert (one.taken_bytes(), other.taken_bytes(), list(tmp_path.iterdir())) == (0, 0, [tmp_path / "lock"])


def test_a_segment_has_one_writer_at_a_time(tmp_path: Path) -> None:
    one, other = new_folder(tmp_path), new_folder(tmp_path)
    segment = one.create(100)
    other.refresh()
    seen = other.segments[segment.path.name]
    assert not other.take_over(seen)
    one.release(segment)
    assert other.take_over(seen)
    assert not one.take_over(segment)


def test_a_removed_segment_is_free_whoever_has_it_open(tmp_path: Path) -> None:
    one, other = new_folder(tmp_path), new_folder(tmp_path)
    segment = one.create(100)
    SystemFiles().write(segment.fd, [memoryview(b"content")], 0)
    other.refresh()
    seen = other.segments[segment.path.name]
    one.remove(segment)
    assert SystemFiles().size(seen.fd) == 0


def test_a_segment_that_cannot_be_locked_is_not_left_open() -> None:
    disk = SimulatedDisk(0)
    files = SimulatedFiles(disk, Faults(busy=1.0))
    folder = SegmentFolder(files, Path("/kv"))
    with pytest.raises(FolderBusyError):
        folder.create(100)
    assert folder.taken_bytes() == 100  # Its file is there, for whoever looks next.
    folder.close()
    assert files.open_files == {}


def test_a_segment_whose_maker_died_before_it_told_counts() -> None:
    disk = SimulatedDisk(0)
    files = SimulatedFiles(disk)
    one, other = (SegmentFolder(each, Path("/kv")) for each in (files, SimulatedFiles(disk)))
    other.refresh()
    files.kill_at = files.num_operations + 5  # after sync_folder, read, open, lock
    with pytest.raises(KilledError):
        one.create(100)
    assert len(disk.names) == 2
    other.refresh()
    assert other.taken_bytes() == 0
    other.refresh(force=True)
    assert other.taken_bytes() == 100
    (segment,) = other.segments.values()
    assert other.take_over(segment)


def test_the_lock_is_of_one_at_a_time() -> None:
    disk = SimulatedDisk(0)
    one, other = (SegmentFolder(SimulatedFiles(disk), Path("/kv")) for _ in range(2))
    with one.locked(), pytest.raises(OSError, match="another process holds /kv/lock"), other.locked():
        pass
    with other.locked():
        pass


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    folder = new_folder(tmp_path)
    folder.create(100)
    assert folder.refresh(force=True) == []
    assert folder.taken_bytes() == 100
    assert (tmp_path / "notes.txt").read_text() == "mine"
