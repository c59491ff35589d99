import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.kv_transfer.stores.file_layer import SystemFiles, read_fully, write_fully
from tests.kv_transfer.stores.simulated_disk import Faults, SimulatedDisk, SimulatedFiles

PATH = Path("/folder/file")


@given(
    seed=st.integers(0, 1000), parts=st.lists(st.binary(max_size=20), min_size=1, max_size=4), offset=st.integers(0, 9)
)
def test_short_reads_and_writes_are_gone_on_with(seed: int, parts: list[bytes], offset: int) -> None:
    files = SimulatedFiles(SimulatedDisk(seed), Faults(short=0.7))
    fd = files.open(PATH, is_new=True)
    write_fully(files, fd, [memoryview(part) for part in parts], offset)
    into = [memoryview(bytearray(len(part))) for part in parts]
    assert read_fully(files, fd, into, offset) == sum(map(len, parts))
    assert into == parts
    assert read_fully(files, fd, [memoryview(bytearray(100))], 0) == files.size(fd)


def test_a_file_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    class FullFiles(SystemFiles):
        def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
            return 3 if offset == 0 else 0

    files = FullFiles()
    with pytest.raises(OSError, match="nothing was written at 3") as caught:
        write_fully(files, files.open(tmp_path / "file", is_new=True), [memoryview(b"12345")], 0)
    assert caught.value.errno == errno.EIO


def test_a_lock_is_of_one_descriptor_and_ends_with_it(tmp_path: Path) -> None:
    files = SystemFiles()
    one = files.open(tmp_path / "file", is_new=True)
    other = files.open(tmp_path / "file")
    assert files.lock(one)
    assert files.lock(one)
    assert not files.lock(other, seconds=0.01)
    files.close(one)
    assert files.lock(other)
    files.close(other)


def test_only_its_user_reads_the_folder(tmp_path: Path) -> None:
    files = SystemFiles()
    files.make_folder(tmp_path / "new" / "folder")
    files.close(files.open(tmp_path / "new" / "folder" / "file", is_new=True))
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "folder" / "file").stat().st_mode & 0o777 == 0o600
