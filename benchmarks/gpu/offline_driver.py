"""Triton without a GPU: a driver in place of a card, and the compiler's output about each kernel.

Knows no kernel.
"""

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

# The limit of one program, in bytes (CUDA C++ guide).
SHARED_MEMORY = {
    75: 64 << 10,
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    120: 99 << 10,
}
# Each waits until at most this many groups of copies or products are pending: its last number.
_COPY_WAIT = re.compile(r"cp\.async\.wait_group\s+(\d+)")
_WARPGROUP_WAIT = re.compile(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)")
# `num` buffers of one shape, of which a loop fills one while it reads another.
_RING = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x([\dx]+)x[a-z]+(\d+)\w*,.*mutable")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


class OfflineDriver:
    """Replaces Triton's CUDA driver; a loaded kernel does nothing when it is launched.

    Kernels may use any amount of shared memory: `Report.fits` tells whether the card has it.
    """

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 30}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024

    def unload_module(self, module: int) -> None:
        pass


class Report(NamedTuple):
    """The report of one version of a kernel. Sizes are bytes, of a thread (`stack`, `spill_...`) or of a program."""

    kernel: str
    warps: int
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    fits: bool
    bytes_in_flight: int  # the most that a loop copies to shared memory in advance
    warpgroup_mma: int  # instructions
    mma: int
    tensor_memory_mma: int
    copy_waits: tuple[int, ...]  # for each wait, the groups of copies that may be pending after it
    warpgroup_waits: tuple[int, ...]

    @property
    def spills(self) -> bool:
        return bool(self.stack or self.spill_stores or self.spill_loads)


class Compiler:
    """Collects ptxas's output about each kernel that is compiled while it is active."""

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self._words = io.StringIO()
        self._log: dict[str, str] = {}

    @contextlib.contextmanager
    def active(self, cache: str) -> Iterator[None]:
        """Compile launched kernels for the card in this block; all output in the block goes into the log.

        `cache` is an empty folder: a kernel in Triton's cache would have no log.
        """
        triton.runtime.driver.set_active(OfflineDriver(self._capability))
        with (
            knobs.cache.scope(),
            knobs.nvidia.scope(),
            knobs.compilation.scope(),
            contextlib.redirect_stdout(self._words),
        ):
            knobs.cache.dir = cache
            knobs.nvidia.dump_ptxas_log = True
            knobs.compilation.listener = self._listen
            yield

    def reports(self, modules: Iterable[ModuleType]) -> Iterator[Report]:
        """A report for each compiled version of the modules' kernels."""
        for module in modules:
            for function in vars(module).values():
                if isinstance(function, triton.JITFunction) and function.device_caches:
                    for kernel in function.device_caches[0][0].values():
                        yield self._report(kernel)

    def _listen(self, *, metadata: Mapping[str, Any], **_: object) -> None:
        self._log[metadata["hash"]] = self._words.getvalue()
        self._words.seek(0)
        self._words.truncate()

    def _report(self, kernel: Any) -> Report:
        ptx, log = kernel.asm["ptx"], self._log[kernel.hash]
        stack, stores, loads = (int(number) for number in _found(_STACK, log).groups())
        return Report(
            kernel=kernel.name,
            warps=kernel.metadata.num_warps,
            registers=int(_found(_REGISTERS, log)[1]),
            stack=stack,
            spill_stores=stores,
            spill_loads=loads,
            shared=kernel.metadata.shared,
            fits=kernel.metadata.shared <= SHARED_MEMORY[self._capability],
            bytes_in_flight=bytes_in_flight(kernel.asm["ttgir"]),
            warpgroup_mma=ptx.count("wgmma.mma_async"),
            mma=ptx.count("mma.sync."),
            tensor_memory_mma=ptx.count("tcgen05.mma"),
            copy_waits=tuple(int(pending) for pending in _COPY_WAIT.findall(ptx)),
            warpgroup_waits=tuple(int(pending) for pending in _WARPGROUP_WAIT.findall(ptx)),
        )


def bytes_in_flight(ttgir: str) -> int:
    """The bytes of all but one buffer of each ring, at the loop with the most."""
    most = current = 0
    for line in ttgir.splitlines():
        if "scf.for" in line:  # The rings of a loop are allocated before it.
            most, current = max(most, current), 0
        if ring := _RING.search(line):
            buffers, shape, bits = int(ring[1]), ring[2], int(ring[3])
            elements = 1
            for size in shape.split("x"):
                elements *= int(size)
            current += (buffers - 1) * elements * bits // 8
    return max(most, current)


def _found(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.search(text)
    assert found is not None, f"no {pattern.pattern} in what ptxas said: {text[:300]!r}"
    return found
