import errno

import pytest

from pyllm.supervision.memory import is_out_of_memory


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


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
