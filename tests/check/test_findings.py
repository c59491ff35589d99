"""Each thing that may be wrong with a machine, alone on one with which nothing else is wrong."""

from typing import Any

import pytest

from pyllm.check.findings import Finding, Severity, find_problems, sort_findings
from pyllm.check.model_needs import ModelNeeds
from pyllm.check.written_folders import PACKED_WEIGHTS, SOCKETS
from pyllm.machine.memory import Memory
from pyllm.machine.processor import NumaNode
from pyllm.machine.system_limits import SHARED_MEMORY
from tests.machine.made_machines import GIB, card, limits, needs, processor, software, with_folder


def find(connections: int = 100, model: ModelNeeds | None = None, **parts: Any) -> list[Finding]:
    machine = {"processor": processor(), "limits": limits(), "software": software()} | parts
    return find_problems(needs=model, connections=connections, **machine)


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert find() == []
    assert find(model=needs()) == []
    gpu = software(cards=(card(),), cuda_driver="12.8")
    assert find(model=needs(device="cuda"), software=gpu) == []
    light = software(packages={**PACKAGES, "torch": "", "triton": "", "transformers": ""})
    assert find(model=needs(), software=light) == []


PACKAGES = software().packages
CASES: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"software": software(packages={**PACKAGES, "tokenizers": ""})},
        "error",
        "tokenizers is not installed",
        "pip install tokenizers",
    ),
    (
        {"software": software(packages={**PACKAGES, "torch": "2.11.0+cpu"}, cards=(card(),))},
        *("error", "there are 1 cards, and torch 2.11.0+cpu is built for CPUs alone", "--device cpu"),
    ),
    *(
        (
            {"software": software(packages={**PACKAGES, package: ""}, cards=(card(),))},
            *("warning", f"1 cards, and {package} is not installed: pip install 'pyllm[gpu]'", "run on the CPU"),
        )
        for package in ("torch", "triton")
    ),
    (
        {"software": software(cards=(card(name="V100", capability="7.0", runs_kernels=False),))},
        *("error", "V100 has compute capability 7.0", "CUDA_VISIBLE_DEVICES"),
    ),
    (
        {"software": software(cards=(card(name="T4", capability="7.5", bfloat16=False, float8=False),))},
        *("note", "bfloat16 begins with 8.0", "--dtype float16"),
    ),
    (
        {"software": software(cuda_driver="12.8")},
        "warning",
        "a driver for CUDA 12.8, and it shows no card",
        "--gpus all",
    ),
    ({"processor": processor(kernel_level="portable")}, "warning", "has no AVX2", "-cpu host"),
    (
        {"processor": processor(quota=2.5)},
        "warning",
        "time for 2.5 of 4 cores: all ranks together compute with 2 threads",
        "--num-threads",
    ),
    (
        {"processor": processor(quota=0.5)},
        "warning",
        "time for 0.5 of 4 cores: all ranks together compute with 1 thread",
        "--num-threads",
    ),
    (
        {"processor": processor(numa_nodes=(NumaNode(0, "0-1", GIB), NumaNode(1, "2-3", GIB)))},
        *("note", "on 2 NUMA nodes", "numactl --cpunodebind=0"),
    ),
    (
        {"limits": limits(memory=(Memory(GIB // 4, GIB // 2, "the container"),))},
        *("warning", "the container has 537 MB of memory in all", "Raise the limit of the control group"),
    ),
    (
        {"limits": limits(memory=(Memory(GIB // 4, GIB // 2, "the host"),))},
        "warning",
        "the host has",
        "a larger machine",
    ),
    ({"limits": limits(swap_bytes=2 * GIB)}, "note", "2.15 GB of swap are on", "swapoff -a"),
    (
        {"limits": limits(swap_bytes=GIB, swap_used_bytes=10**8)},
        "warning",
        "100 MB of 1.07 GB of swap are",
        "swap",
    ),
    ({"limits": limits(transparent_huge_pages="never")}, "note", "huge pages are off", "echo madvise"),
    (
        {"limits": limits(open_files=1024), "connections": 2000},
        "warning",
        "2000 connections need 2100",
        "ulimit -n 2100.",
    ),
    (
        {"limits": limits(open_files=1024, most_open_files=1024), "connections": 2000},
        *("warning", "may open 1024 files", "LimitNOFILE"),
    ),
    ({"limits": limits(open_files=150)}, "error", "may open 150 files, and 100 connections need 200", "ulimit -n 200"),
    ({"limits": limits(processes=64)}, "error", "this user may have 64 processes", "ulimit -u"),
    ({"limits": limits(control_group_processes=9)}, "error", "the control group has room for 9", "pids.max"),
    (
        {"limits": with_folder(SOCKETS, writable=False)},
        "error",
        "/made/up, where processes put their sockets",
        "TMPDIR",
    ),
    ({"limits": with_folder(SOCKETS, free_bytes=0)}, "error", "sockets, is full", "TMPDIR"),
    (
        {"limits": with_folder(SHARED_MEMORY, 64 << 20), "model": needs(device="cuda", ranks=2)},
        *("error", "/made/up has 67 MB free, and cards exchange data there", "--shm-size 1g"),
    ),
    ({"limits": with_folder(PACKED_WEIGHTS, writable=False)}, "warning", "cannot be written", "XDG_CACHE_HOME"),
    (
        {"limits": with_folder(PACKED_WEIGHTS, GIB), "model": needs()},
        *("warning", "/made/up has 1.07 GB free, and packed weights take 2.15 GB", "Free some"),
    ),
    (
        {"model": needs(device="cuda", ranks=2, room_bytes=-1, memory_bytes=80 * 10**9)},
        *("error", "the model takes 2.15 GB and about 34 MB a step on 2 of 80.00 GB", "--tensor-parallel-size"),
    ),
    (
        {"model": needs(longest_context=1024, cache_bytes=64 << 20, ranks=2)},
        *(
            "warning",
            "requests of more than 1024 tokens",
            "Set --kv-cache-memory-bytes 134217728, or set ",
        ),
    ),
    (
        {"model": needs(longest_context=1024, room_bytes=64 << 20)},
        *("warning", "the KV cache has 67 MB", "Set --max-model-len 1024."),
    ),
    ({"limits": limits(memory=()), "model": needs()}, "note", "does not say how much memory", "Compare"),
]


@pytest.mark.parametrize(("parts", "severity", "problem", "fix"), CASES)
def test_one_thing_is_wrong(parts: dict[str, Any], severity: str, problem: str, fix: str) -> None:
    (found,) = find(**parts)
    assert found.severity == severity
    assert problem in found.problem
    assert fix in found.fix
    # A sentence, for a table and for a line.
    assert found.fix.endswith(".")
    assert found.fix[0].isupper()
    assert not found.problem.endswith(".")


def test_what_does_not_matter_is_not_said() -> None:
    # One card exchanges nothing, and a GPU packs no weights.
    assert find(limits=with_folder(SHARED_MEMORY, 64 << 20), model=needs(device="cuda")) == []
    assert find(limits=with_folder(PACKED_WEIGHTS, GIB), model=needs(device="cuda")) == []
    # Where the model does not fit into host memory, a server's own rule says so.
    assert find(model=needs(room_bytes=-1, longest_context=0)) == []


def test_errors_come_first() -> None:
    severities: tuple[Severity, ...] = ("note", "error", "warning", "error")
    found = [Finding(severity, name, "") for severity, name in zip(severities, "abcd", strict=True)]
    assert [finding.problem for finding in sort_findings(found)] == ["b", "d", "c", "a"]
