"""Which exceptions say that a device, or the host, had no memory left. Does not import torch to tell."""

import errno

# What torch's allocators of the CPU say in a plain RuntimeError; that of CUDA has a class of its own.
_TEXTS = ("DefaultCPUAllocator", "can't allocate memory", "CUDA out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, of Python's, the system's or torch's, is about memory that was not there."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in _TEXTS)
