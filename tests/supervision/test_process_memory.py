"""Memory given back, by the kernel's figures of this process; errors that mean that it ran out."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from pyllm.supervision.process_memory import clean_mappings, forget_files, is_out_of_memory

SIZE = 64 << 20


def resident() -> int:
    """Bytes of files that are mapped and in memory."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile:")]
    return int(line.split()[1]) << 10


def test_what_is_mapped_of_files_is_forgotten_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        content = mapped[:]
        before = resident()
        forget_files()
        assert before - resident() > SIZE // 2
        assert mapped[:] == content


def test_what_was_changed_stays(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(bytes(SIZE))
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("rb") as file, mmap.mmap(file.fileno(), SIZE, mmap.MAP_PRIVATE, protection) as mapped:
        mapped[SIZE // 2] = 7
        forget_files()
        assert mapped[SIZE // 2] == 7


def mapping(begin: int, permissions: str, path: str, *, anonymous: int = 0, swapped: int = 0) -> str:
    """A page as `/proc/PID/smaps` tells of it."""
    head = f"{begin:x}-{begin + 0x1000:x} {permissions} 00000000 fe:00 1234                       {path}"
    return f"{head}\nRss: 4 kB\nAnonymous: {anonymous} kB\nKSM: 0 kB\nSwap: {swapped} kB\nSwapPss: 0 kB\n"


def test_clean_are_private_pages_of_files_that_were_never_changed() -> None:
    smaps = (
        mapping(0x1000, "r-xp", "/lib/clean.so")
        + mapping(0x2000, "rw-p", "/lib/changed.so", anonymous=4)
        + mapping(0x3000, "rw-p", "/lib/changed, and swapped out.so", swapped=4)
        + mapping(0x4000, "rw-s", "/dev/shm/shared")
        + mapping(0x5000, "rw-p", "[heap]")
        + mapping(0x6000, "r--p", "/lib/clean too.so")
    )
    assert clean_mappings(smaps) == [(0x1000, 0x2000), (0x6000, 0x7000)]


class OutOfMemoryError(RuntimeError):
    """An error with the name of torch's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.EINVAL, "Invalid argument"), False),
        (OutOfMemoryError("Tried to allocate 20.00 MiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory"), True),
        (RuntimeError("can't allocate memory: you tried to allocate 8 bytes. Error code 12"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("can't allocate memory"), False),
        (KeyError("memory"), False),
    ],
)
def test_which_errors_are_about_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
