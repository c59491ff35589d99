"""The processor's features, from `/proc/cpuinfo`."""

from functools import cache
from pathlib import Path


@cache
def about() -> dict[str, str]:
    """The fields of the last core in `/proc/cpuinfo`; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    return parse(path.read_text()) if path.exists() else {}


def parse(cpuinfo: str) -> dict[str, str]:
    """The fields of the last core in a text like `/proc/cpuinfo`."""
    pairs = (line.partition(":") for line in cpuinfo.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def instructions(fields: dict[str, str] | None = None) -> frozenset[str]:
    """The instruction sets of a processor, by Linux's names: `avx2`, `avx512_vnni`, `amx_int8`..."""
    return frozenset((about() if fields is None else fields).get("flags", "").split())
