"""Machines that are made up: files of Linux below a folder, and structs that rules are tried on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyllm.check.model_needs import Fit, ModelNeeds
from pyllm.check.written_folders import PACKED_WEIGHTS, SOCKETS
from pyllm.machine.memory import Memory
from pyllm.machine.processor import NumaNode, Processor, kernels_of
from pyllm.machine.software import Card, Software
from pyllm.machine.system_limits import SHARED_MEMORY, Folder, SystemLimits

GIB = 1 << 30
AVX2 = "fpu sse2 fma avx f16c avx2"
AVX512 = f"{AVX2} avx512f avx512bw avx512vl avx512_vnni"

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             31000                62000                processes
Max open files            1024                 524288               files
"""


def write_machine(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder; gives the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cpuinfo(flags: str, vendor: str = "AuthenticAMD", cores: int = 4) -> str:
    """As Linux writes it, a block a core."""
    block = "processor\t: {}\nvendor_id\t: {}\nmodel name\t: Made Up 9000\nflags\t\t: {}\n\n"
    return "".join(block.format(core, vendor, flags) for core in range(cores))


def processor(**changes: Any) -> Processor:
    """Of four cores with AVX-512, with which nothing is wrong."""
    made = Processor(
        name="Made Up 9000",
        features=("avx2",),
        kernel_level="avx512_vnni",
        kernels=kernels_of("avx512_vnni"),
        num_cores=4,
        usable_cores=4,
        quota=None,
        numa_nodes=(NumaNode(0, "0-3", 64 * GIB),),
    )
    return msgspec.structs.replace(made, **changes)


def limits(**changes: Any) -> SystemLimits:
    """With 64 GiB and room for everything."""
    names = (PACKED_WEIGHTS, SHARED_MEMORY, SOCKETS)
    made = SystemLimits(
        memory=(Memory(60 * GIB, 64 * GIB, "the host"),),
        swap_bytes=0,
        swap_used_bytes=0,
        transparent_huge_pages="madvise",
        open_files=20000,
        most_open_files=None,
        processes=None,
        control_group_processes=None,
        folders=tuple(Folder(name, f"/{name}", 100 * GIB, writable=True) for name in names),
    )
    return msgspec.structs.replace(made, **changes)


def with_folder(purpose: str, free_bytes: int = 100 * GIB, writable: bool = True) -> SystemLimits:
    """The same with another folder for this."""
    others = tuple(folder for folder in limits().folders if folder.purpose != purpose)
    return limits(folders=(*others, Folder(purpose, "/made/up", free_bytes, writable)))


def software(**changes: Any) -> Software:
    """Without a GPU."""
    made = Software(
        system="Linux 6 x86_64",
        python="3.12.1",
        packages={"torch": "2.11.0", "triton": "3.6.0", "transformers": "5.30.0", "tokenizers": "0.23.0"},
        cuda_driver="",
        cards=(),
    )
    return msgspec.structs.replace(made, **changes)


def card(**changes: Any) -> Card:
    """One that has everything."""
    made = Card(
        name="Made Up H", capability="9.0", memory_bytes=80 * GIB, runs_kernels=True, bfloat16=True, float8=True
    )
    return msgspec.structs.replace(made, **changes)


def needs(**changes: Any) -> ModelNeeds:
    """Of a model that fits."""
    made = ModelNeeds(
        name="tiny",
        format="gguf",
        architecture="LlamaForCausalLM",
        parameters=10**8,
        device="cpu",
        dtype="bfloat16",
        quantization="none",
        kv_cache_dtype="bfloat16",
        ranks=1,
        context=4096,
        max_num_seqs=128,
        weights_bytes=2 * GIB,
        process_bytes=GIB // 2,
        table_bytes=1 << 20,
        activation_bytes=1 << 25,
        kv_bytes_per_token=1 << 16,
        context_bytes=4096 << 16,
        cache_bytes=GIB // 2,
        memory_bytes=60 * GIB,
        room_bytes=50 * GIB,
        longest_context=4096,
        fits=(Fit(1024, 8, 128), Fit(4096, 1, 128)),
    )
    return msgspec.structs.replace(made, **changes)
