"""What Linux says of the processor."""

from functools import cache
from pathlib import Path


@cache
def about() -> dict[str, str]:
    """What `/proc/cpuinfo` has of the last core, by name; nothing where there is none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def instructions() -> frozenset[str]:
    """The flags of its instruction sets, as Linux names them: `avx2`, `avx512_vnni`, `amx_int8`..."""
    return frozenset(about().get("flags", "").split())
