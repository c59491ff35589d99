"""Processors that are made up, and the one of this machine beside what the kernels themselves say."""

from pathlib import Path
from typing import get_args

import pyllm_kernels
import pytest

from pyllm.config.engine_settings import InstructionSet
from pyllm.machine.processor import LEVELS, NumaNode, cores_in, kernel_level, kernels_of, read_processor
from tests.machine.made_machines import AVX2, AVX512, GIB, cpuinfo, write_machine

AMX = f"{AVX512} avx512_bf16 amx_tile amx_int8 amx_bf16"


@pytest.mark.parametrize(
    ("flags", "vendor", "level"),
    [
        ("fpu sse2", "GenuineIntel", "portable"),
        ("fpu avx2 fma", "AuthenticAMD", "portable"),
        (AVX2, "AuthenticAMD", "avx2"),
        (f"{AVX2} avx512f avx512bw avx512vl", "GenuineIntel", "avx2"),
        (f"{AVX2} avx_vnni", "GenuineIntel", "avx_vnni"),
        (f"{AVX512} avx_vnni", "AuthenticAMD", "avx512_vnni"),
        (AVX512, "GenuineIntel", "avx512_vnni"),
        (f"{AVX512} avx512_bf16", "AuthenticAMD", "avx512_bf16"),
        (f"{AVX512} avx512_bf16", "GenuineIntel", "avx512_vnni"),
        (AMX, "GenuineIntel", "amx"),
        # A guest whose host hides a part of it.
        (AMX.replace(" f16c", ""), "GenuineIntel", "portable"),
    ],
)
def test_kernels_are_those_of_the_best_level_that_is_there(flags: str, vendor: str, level: str) -> None:
    assert kernel_level(frozenset(flags.split()), vendor) == level


def test_each_level_can_be_chosen() -> None:
    assert get_args(InstructionSet) == ("auto", *LEVELS)


def test_this_machine_is_seen_as_the_kernels_see_it() -> None:
    assert read_processor().kernel_level == pyllm_kernels.instruction_set()


@pytest.mark.parametrize(
    ("level", "bfloat16", "blocks"),
    [
        ("portable", "plain Rust", "plain Rust"),
        ("avx2", "AVX2", "AVX2"),
        ("avx_vnni", "AVX2", "AVX2 VNNI"),
        ("avx512_vnni", "AVX-512", "AVX-512 VNNI"),
        ("avx512_bf16", "AVX-512 BF16", "AVX-512 VNNI"),
        ("amx", "AMX tiles", "AMX tiles from 33 rows, AVX-512 VNNI below"),
    ],
)
def test_each_format_has_its_kernel(level: str, bfloat16: str, blocks: str) -> None:
    kernels = kernels_of(level)
    assert (kernels["bfloat16"], kernels["GGUF blocks"]) == (bfloat16, blocks)
    assert kernels["float16"] == kernels["float32"]


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("", []), ("0-1, 4-5", [0, 1, 4, 5]), ("x", [])]
)
def test_lists_of_cores_are_read(text: str, cores: list[int]) -> None:
    assert cores_in(text) == cores


def test_a_container_sees_its_share_of_a_machine_with_two_nodes(tmp_path: Path) -> None:
    node = "sys/devices/system/node/node"
    files = {
        "proc/cpuinfo": cpuinfo(AVX2, cores=16),
        "proc/self/status": "Name:\tpyllm\nCpus_allowed:\t00ff\nCpus_allowed_list:\t0-7\n",
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/cpu.max": "250000 100000",
        "sys/fs/cgroup/pod/container/cpu.max": "max 100000",
        f"{node}0/cpulist": "0-7",
        f"{node}0/meminfo": "Node 0 MemTotal:       1048576 kB\nNode 0 MemFree: 5 kB\n",
        f"{node}1/cpulist": "8-15",
    }
    found = read_processor(write_machine(tmp_path, files))
    assert (found.name, found.kernel_level) == ("Made Up 9000", "avx2")
    assert (found.num_cores, found.usable_cores, found.quota) == (16, 8, 2.5)
    assert found.numa_nodes == (NumaNode(0, "0-7", GIB), NumaNode(1, "8-15", 0))


def test_a_machine_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    found = read_processor(tmp_path)
    assert (found.name, found.kernel_level, found.num_cores, found.quota) == ("unknown", "portable", 0, None)
