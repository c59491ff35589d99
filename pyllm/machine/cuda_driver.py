"""The CUDA cards that this process may use, as the driver's library lists them. Knows no model and no kernel.

Imports no torch and creates no CUDA context. `CUDA_VISIBLE_DEVICES` has the same effect as in the workers.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

# CUdevice_attribute in cuda.h.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class VisibleCard:
    """A card's name, and the properties that default settings depend on."""

    capability: int  # major * 10 + minor
    memory_bytes: int
    name: str = ""


def visible_cards(library: str = "libcuda.so.1") -> tuple[VisibleCard, ...]:
    """The cards, ordered by index; empty without a working driver."""
    try:
        return read_cards(ctypes.CDLL(library))
    except OSError:
        return ()


def driver_version(library: str = "libcuda.so.1") -> str:
    """The newest CUDA version that the driver supports, such as `12.8`; empty without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return ""
    return "" if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def read_cards(driver: Any) -> tuple[VisibleCard, ...]:
    """The cards that a loaded driver library lists. Its functions, or those of a fake, return 0 on success."""
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    cards = []
    for number in range(count.value):
        device, major, minor, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
        name = ctypes.create_string_buffer(_LONGEST_NAME)
        failures = (
            driver.cuDeviceGet(ctypes.byref(device), number)
            or driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
            or driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
            or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
            or driver.cuDeviceGetName(name, _LONGEST_NAME, device)
        )
        if failures:
            return ()
        cards.append(VisibleCard(major.value * 10 + minor.value, memory.value, name.value.decode(errors="replace")))
    return tuple(cards)
