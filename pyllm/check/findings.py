"""Problems of a machine, or of a model on it, each with its fix in one sentence. Pure rules; reads nothing."""

import math
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import msgspec

from pyllm.check.model_needs import ModelNeeds
from pyllm.check.written_folders import PACKED_WEIGHTS, SOCKETS
from pyllm.checkpoint.hub import size_text
from pyllm.machine.extras import GPU_PACKAGES, missing_extra
from pyllm.machine.processor import PORTABLE, Processor, cores_in
from pyllm.machine.software import Software
from pyllm.machine.system_limits import SHARED_MEMORY, SystemLimits

# error: a server cannot run. warning: it runs, but worse. note: information.
Severity = Literal["error", "warning", "note"]

# Files that a server's process has open, without the connections of clients.
OWN_FILES = 100
# Threads and processes that a server starts in addition to one thread per core.
OWN_PROCESSES = 100
LEAST_SOCKET_BYTES = 1 << 20
# Docker gives a container 64 MB of shared memory, which is too little for NCCL; NVIDIA advises 1 GB.
LEAST_SHARED_BYTES = 128 << 20
# The embedded model takes 0.6 GB with its processes, before there is a KV cache.
LEAST_MEMORY_BYTES = 1 << 30


class Finding(msgspec.Struct, frozen=True):
    """A problem and its fix; `fix` is empty where `problem` includes it."""

    severity: Severity
    problem: str
    fix: str


def find_problems(
    processor: Processor, limits: SystemLimits, software: Software, needs: ModelNeeds | None, connections: int
) -> list[Finding]:
    """All problems. `connections` is the number of clients that connect at the same time."""
    return [
        *_software(software),
        *_processor(processor),
        *_memory(limits),
        *_files_and_processes(processor, limits, connections),
        *_folders(limits, needs),
        *(_model(limits, needs) if needs is not None else ()),
    ]


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes."""
    return sorted(findings, key=lambda finding: get_args(Severity).index(finding.severity))


def _software(software: Software) -> Iterator[Finding]:
    if not software.packages.get("tokenizers"):
        yield Finding("error", "tokenizers is not installed", "Install it: pip install tokenizers.")
    torch = software.packages.get("torch", "")
    if software.cards and torch.endswith("+cpu"):
        yield Finding(
            "error",
            f"there are {len(software.cards)} cards, and torch {torch} is built for CPUs alone",
            "Install a torch with CUDA, or serve with --device cpu.",
        )
    missing = next((name for name in GPU_PACKAGES if not software.packages.get(name)), "")
    if software.cards and missing:
        text = f"there are {len(software.cards)} cards, and {missing_extra('gpu', missing)}"
        yield Finding("warning", text, "Without it models run on the CPU.")
    for card in software.cards:
        if not card.runs_kernels:
            yield Finding(
                "error",
                f"{card.name} has compute capability {card.capability}, and Triton compiles for 7.5 and later",
                "Hide it by CUDA_VISIBLE_DEVICES, or serve with --device cpu.",
            )
        elif not card.bfloat16:
            text = f"{card.name} has compute capability {card.capability}, and bfloat16 begins with 8.0"
            yield Finding("note", text, "Nothing to do: models of bfloat16 run in float16 with --dtype float16.")
    if software.cuda_driver and not software.cards:
        yield Finding(
            "warning",
            f"there is a driver for CUDA {software.cuda_driver}, and it shows no card",
            "Check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, --gpus all.",
        )


def _processor(processor: Processor) -> Iterator[Finding]:
    if processor.kernel_level == PORTABLE:
        yield Finding(
            "warning",
            "the processor has no AVX2 with FMA and F16C, so that kernels compute without vectors, many times slower",
            "Use a processor with AVX2; in a virtual machine show the guest the host's processor (-cpu host).",
        )
    quota, usable = processor.quota, processor.usable_cores
    if quota is not None and quota < usable:
        cores = max(1, math.floor(quota))
        yield Finding(
            "warning",
            f"the control group gives time for {quota:g} of {usable} cores: all ranks together compute with {cores} "
            f"thread{'s' if cores > 1 else ''}",
            "Raise the limit (--cpus of docker, limits.cpu of Kubernetes) to whole cores; --num-threads sets another "
            "number.",
        )
    if (nodes := sum(bool(cores_in(node.cores)) for node in processor.numa_nodes)) > 1:
        yield Finding(
            "note",
            f"memory is on {nodes} NUMA nodes, and a core is slower with that of another node",
            "If the model fits on one node: numactl --cpunodebind=0 --membind=0 pyllm serve. Otherwise start one rank "
            f"per node: --tensor-parallel-size {nodes}.",
        )


def _memory(limits: SystemLimits) -> Iterator[Finding]:
    for memory in limits.memory:
        if memory.total < LEAST_MEMORY_BYTES:
            where = "Use a larger machine" if memory.owner == "the host" else "Raise the limit of the control group"
            text = f"{memory.owner} has {size_text(memory.total)} of memory in all, and the embedded model takes 0.6 GB"
            yield Finding("warning", text, f"{where}: with 2 GB the embedded model has its usual KV cache.")
    if limits.swap_used_bytes:
        yield Finding(
            "warning",
            f"{size_text(limits.swap_used_bytes)} of {size_text(limits.swap_bytes)} of swap are in use, and a step "
            "waits for each page of the model that is swapped out",
            "Free memory and switch swap off (swapoff -a), or set memory.swap.max to 0 for the server.",
        )
    elif limits.swap_bytes:
        text = f"{size_text(limits.swap_bytes)} of swap are on: if memory gets short, pages of the model may go there"
        yield Finding("note", text, "Switch it off (swapoff -a), or set memory.swap.max to 0 for the server.")
    if limits.transparent_huge_pages == "never":
        yield Finding(
            "note",
            "huge pages are off, and the KV cache is read with more misses of the TLB",
            "Allow them where they are asked for: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled.",
        )


def _files_and_processes(processor: Processor, limits: SystemLimits, connections: int) -> Iterator[Finding]:
    files = limits.open_files
    if files is not None and files < connections + OWN_FILES:
        text = f"a process may open {files} files, and {connections} connections need {connections + OWN_FILES}"
        may = limits.most_open_files is None or limits.most_open_files >= connections + OWN_FILES
        fix = f"Raise it: ulimit -n {connections + OWN_FILES}"
        how = "." if may else ", as root or by LimitNOFILE of systemd, as the hard limit is lower, too."
        yield Finding("error" if files < 2 * OWN_FILES else "warning", text, fix + how)
    needed = processor.usable_cores + OWN_PROCESSES
    for free, what, fix in (
        (limits.processes, "this user may have", f"Raise it: ulimit -u {4 * needed}."),
        (limits.control_group_processes, "the control group has room for", "Raise pids.max (--pids-limit of docker)."),
    ):
        if free is not None and free < needed:
            yield Finding("error", f"{what} {free} processes and threads, and a server needs about {needed}", fix)


def _folders(limits: SystemLimits, needs: ModelNeeds | None) -> Iterator[Finding]:
    sockets = limits.folder(SOCKETS)
    if sockets is not None and not (sockets.writable and sockets.free_bytes >= LEAST_SOCKET_BYTES):
        problem = "is full" if sockets.writable else "cannot be written"
        fix = "Set TMPDIR or XDG_RUNTIME_DIR to a folder with room."
        yield Finding("error", f"{sockets.path}, where processes put their sockets, {problem}", fix)
    shared = limits.folder(SHARED_MEMORY)
    is_shared = needs is not None and needs.device == "cuda" and needs.ranks > 1
    if is_shared and shared is not None and shared.free_bytes < LEAST_SHARED_BYTES:
        text = f"{shared.path} has {size_text(shared.free_bytes)} free, and cards exchange data there"
        yield Finding("error", text, "Make it larger: --shm-size 1g of docker, or an emptyDir of medium Memory.")
    packed = limits.folder(PACKED_WEIGHTS)
    if packed is None:
        return
    if not packed.writable:
        text = f"the cache folder {packed.path} cannot be written, and every start reads and packs the weights again"
        yield Finding("warning", text, "Set XDG_CACHE_HOME to a folder that can be written.")
    elif needs is not None and needs.device == "cpu" and packed.free_bytes < needs.weights_bytes:
        yield Finding(
            "warning",
            f"{packed.path} has {size_text(packed.free_bytes)} free, and packed weights take "
            f"{size_text(needs.weights_bytes)}: every start packs them again",
            "Free some, or set XDG_CACHE_HOME to another disk.",
        )


def _model(limits: SystemLimits, needs: ModelNeeds) -> Iterator[Finding]:
    if needs.device == "cuda" and needs.room_bytes <= 0:
        yield Finding(
            "error",
            f"the model takes {size_text(needs.weights_bytes)} and about {size_text(needs.activation_bytes)} a step on "
            f"{needs.ranks} of {size_text(needs.memory_bytes)}",
            "Use more cards (--tensor-parallel-size), a quantised model, or a smaller one.",
        )
        return
    if needs.room_bytes <= 0:
        return  # `check_memory` reports this problem.
    if needs.longest_context < needs.context:
        size = min(needs.cache_bytes, needs.room_bytes)
        shorter = f"et --max-model-len {needs.longest_context}."
        larger = f"et --kv-cache-memory-bytes {-(-needs.context_bytes // needs.ranks)}, or s{shorter}"
        yield Finding(
            "warning",
            f"a sequence of the whole context of {needs.context} tokens takes {size_text(needs.context_bytes)}, and "
            f"the KV cache has {size_text(size)}: requests of more than {needs.longest_context} tokens are refused",
            f"S{larger if needs.context_bytes <= needs.room_bytes else shorter}",
        )
    if limits.available_bytes is None and needs.device == "cpu":
        yield Finding("note", "the machine does not say how much memory is free", "Compare the numbers yourself.")
