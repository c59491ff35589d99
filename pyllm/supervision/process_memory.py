"""Memory of this process: how to give back unused pages, and which errors mean that it ran out. Imports no torch."""

import ctypes
import errno
import re
from pathlib import Path

_MADV_DONTNEED = 4
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(/?)")


def return_freed_memory() -> None:
    """Return freed memory to the system (4 ms); otherwise glibc kept all 55 MB of dropped cache entries."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if malloc_trim is not None:
        malloc_trim(0)


def forget_files() -> None:
    """Drop clean pages of mapped files, such as libraries, which can be read again: imports read more than is used."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end in clean_mappings(Path("/proc/self/smaps").read_text()):
        madvise(begin, end - begin, _MADV_DONTNEED)


def clean_mappings(smaps: str) -> list[tuple[int, int]]:
    """The begin and end addresses of private file mappings without changed pages. Changed pages, such as relocated
    ones, exist only in memory or swap, so their mappings are left out.
    """
    mappings: list[tuple[int, int]] = []
    candidate, changed = None, 0
    for line in smaps.splitlines():
        if (match := _MAPPING.match(line)) is not None:
            begin, end, permissions, path = match.groups()
            candidate = (int(begin, 16), int(end, 16)) if permissions.endswith("p") and path else None
        elif line.startswith("Anonymous:"):
            changed = int(line.split()[1])
        elif line.startswith("Swap:") and candidate is not None and changed + int(line.split()[1]) == 0:
            mappings.append(candidate)
    return mappings


# Texts of torch's CPU allocators in a plain RuntimeError; CUDA's error has its own class.
_TEXTS = ("DefaultCPUAllocator", "can't allocate memory", "CUDA out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, the system or torch means that memory ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in _TEXTS)
