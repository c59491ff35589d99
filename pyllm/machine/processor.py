"""The processor: its instructions, the kernels chosen for them, the usable cores, NUMA nodes.

Reads Linux's files only. `kernels/src/isa.rs` chooses at run time by the same rules.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from pyllm.machine.control_groups import cpu_quota, read_file
from pyllm.machine.cpu_features import instructions, parse

PORTABLE = "portable"
_OF_AVX2 = frozenset({"avx2", "fma", "f16c"})
_OF_AVX512 = _OF_AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}
# Instructions that each level of the kernels needs, ascending.
LEVELS: Mapping[str, frozenset[str]] = {
    PORTABLE: frozenset(),
    "avx2": _OF_AVX2,
    "avx_vnni": _OF_AVX2 | {"avx_vnni"},
    "avx512_vnni": _OF_AVX512,
    "avx512_bf16": _OF_AVX512 | {"avx512_bf16"},
    "amx": _OF_AVX512 | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
}

_VECTORS = {PORTABLE: "plain Rust", "avx2": "AVX2", "avx_vnni": "AVX2"}
_AVX512 = "AVX-512"
_SHOWN = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_int8", "amx_bf16")
_INTEL = "GenuineIntel"


class NumaNode(msgspec.Struct, frozen=True):
    """A part of the machine with memory of its own; `cores` is a list as Linux writes it, such as `0-7,16`."""

    index: int
    cores: str
    memory_bytes: int


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """A processor. `kernel_level` is the best of `LEVELS` that it supports; `kernels` has each format's kernel on it.

    `usable_cores` are those of the affinity mask; `quota` is a control group's limit of CPU time, in cores. Hardware
    threads of one core count as one.
    """

    name: str
    features: tuple[str, ...]
    kernel_level: str
    kernels: Mapping[str, str]
    num_cores: int
    usable_cores: int
    quota: float | None
    numa_nodes: tuple[NumaNode, ...]


def read_processor(root: Path = Path("/")) -> Processor:
    """The processor of the machine whose files are below `root`."""
    text = read_file(root / "proc/cpuinfo")
    fields = parse(text)
    flags = instructions(fields)
    level = kernel_level(flags, fields.get("vendor_id", ""))
    cpus = [int(line.partition(":")[2]) for line in text.splitlines() if line.startswith("processor")]
    allowed = _field(read_file(root / "proc/self/status"), "Cpus_allowed_list")
    return Processor(
        name=fields.get("model name", fields.get("CPU part", "unknown")),
        features=tuple(name for name in _SHOWN if name in flags),
        kernel_level=level,
        kernels=kernels_of(level),
        num_cores=count_cores(cpus, root),
        usable_cores=count_cores(cores_in(allowed) or cpus, root),
        quota=cpu_quota(root),
        numa_nodes=numa_nodes(root),
    )


def kernel_levels(flags: frozenset[str]) -> list[str]:
    """The levels that run on a processor, ascending."""
    return [level for level, needed in LEVELS.items() if needed <= flags]


def kernel_level(flags: frozenset[str], vendor: str) -> str:
    """The level whose kernels run. Not `avx512_bf16` on Intel, whose bfloat16 of AVX-512 is slower than float32."""
    return [level for level in kernel_levels(flags) if (level, vendor) != ("avx512_bf16", _INTEL)][-1]


def kernels_of(level: str) -> dict[str, str]:
    """The instructions that multiply each format of weights, and compute attention."""
    vectors = _VECTORS.get(level, _AVX512)
    integers = vectors if level in {PORTABLE, "avx2"} else f"{vectors} VNNI"
    tiles = level == "amx"
    bfloat16 = {"avx512_bf16": f"{_AVX512} BF16", "amx": "AMX tiles"}.get(level, vectors)
    return {
        "float32": vectors,
        "bfloat16": bfloat16,
        "float16": vectors,
        "int8": f"AMX tiles from 4 rows, {integers} below" if tiles else integers,
        "GGUF blocks": f"AMX tiles from 33 rows, {integers} below" if tiles else integers,
        "attention": "AMX tiles where shapes allow" if tiles else vectors,
    }


def count_cores(cpus: Collection[int], root: Path = Path("/")) -> int:
    """The number of cores that Linux's CPUs belong to; each is a core of its own where Linux does not say."""
    siblings = (read_file(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus)
    return len({text or cpu for cpu, text in zip(cpus, siblings, strict=True)})


def cores_in(text: str) -> list[int]:
    """The numbers in a list as Linux writes it: `0-3,8`."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            cores += range(int(first), int(last or first) + 1)
    return cores


def numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """The NUMA nodes of the machine whose files are below `root`."""
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        total = _field(read_file(folder / "meminfo"), "MemTotal").split()
        size = int(total[0]) << 10 if total and total[0].isdecimal() else 0
        nodes.append(NumaNode(int(folder.name[4:]), read_file(folder / "cpulist"), size))
    return tuple(sorted(nodes, key=lambda node: node.index))


def _field(text: str, name: str) -> str:
    """The text after `name:` in the first line that has it, also inside a line, as in `Node 0 MemTotal: 5 kB`."""
    found = (line.partition(f"{name}:")[2].strip() for line in text.splitlines() if f"{name}:" in line)
    return next(found, "")
