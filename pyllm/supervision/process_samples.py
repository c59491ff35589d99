"""Samples of each process of a server: memory, CPU time, and memory of NVIDIA cards. Read from /proc and, if
nvidia-ml-py is installed, from the driver. Knows no roles: a process is named by its title.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pyllm.wire.messages import Restarts

MAX_NAME = 80
FRESH = 1.0  # seconds for which samples are reused

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `memory_bytes` is its PSS: memory shared with other processes is divided among them.

    `cpu_seconds` covers all its threads since its start, `age` seconds ago. `device_bytes` covers all cards, None if
    the driver does not report it.

    It is the successor of `num_restarts` processes; the last one ended `restart_age` seconds ago for `restart_reason`,
    such as "core 0 was killed by SIGKILL while ready".
    """

    name: str
    pid: int
    memory_bytes: int
    cpu_seconds: float
    num_threads: int
    age: float
    device_bytes: int | None = None
    num_restarts: int = 0
    restart_age: float | None = None
    restart_reason: str | None = None


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True):
    """One card: bytes in use by all processes, and the share of the last second, 0 to 1, in which it computed."""

    name: str
    index: int
    used_bytes: int
    total_bytes: int
    utilization: float


class Samples(msgspec.Struct, frozen=True):
    """All processes of a server, in the order of their start, and all cards of the machine."""

    processes: list[ProcessSample]
    devices: list[DeviceSample]


class ProcessSampler:
    """Samples the processes of `roots` and their descendants; takes milliseconds: call it from a thread.

    `restarts` returns the known restarts, by the clock of `Restarts`.
    """

    def __init__(
        self,
        roots: Callable[[], Sequence[int]],
        proc: Path = _PROC,
        nvml: Any | None = None,
        clock: Callable[[], float] = time.monotonic,
        restarts: Callable[[], Sequence[Restarts]] = tuple,
    ) -> None:
        self._roots = roots
        self._proc = proc
        self._nvml = nvml
        self._clock = clock
        self._restarts = restarts
        self._taken = Samples([], [])
        self._taken_at = -FRESH

    def sample(self) -> Samples:
        """The current samples, at most one second old. A process that ends meanwhile is left out."""
        now = self._clock()
        if now - self._taken_at >= FRESH:
            devices, bytes_of = _devices(self._nvml) if self._nvml is not None else ([], None)
            pids = list(self._descendants())
            if bytes_of is not None and bytes_of.keys().isdisjoint(pids):
                bytes_of = None  # In a container the driver may use other ids.
            restarts = {restarts.pid: restarts for restarts in self._restarts()}
            found = [
                _with_restarts(sample, restarts.get(pid), now)
                for pid in pids
                if (sample := self._process(pid, bytes_of)) is not None
            ]
            self._taken = Samples(sorted(found, key=lambda sample: -sample.age), devices)
            self._taken_at = now
        return self._taken

    def _descendants(self) -> Iterator[int]:
        children: dict[int, list[int]] = {}
        for entry in self._proc.iterdir():
            if entry.name.isdecimal():
                with suppress(OSError, ValueError, IndexError):
                    children.setdefault(int(_stat(entry)[1]), []).append(int(entry.name))
        pending = list(self._roots())
        while pending:
            pid = pending.pop()
            yield pid
            pending += children.get(pid, ())

    def _process(self, pid: int, bytes_of: dict[int, int] | None) -> ProcessSample | None:
        folder = self._proc / str(pid)
        try:
            stat = _stat(folder)
            uptime = float((self._proc / "uptime").read_text().split()[0])
            # A title is one word. Of other processes only the program counts, as arguments differ each time.
            title = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace").strip()
            return ProcessSample(
                name=title.rpartition("/")[2][:MAX_NAME],
                pid=pid,
                memory_bytes=_pss(folder),
                cpu_seconds=(int(stat[11]) + int(stat[12])) / _TICKS,
                num_threads=int(stat[17]),
                age=max(0.0, uptime - int(stat[19]) / _TICKS),
                device_bytes=None if bytes_of is None else bytes_of.get(pid, 0),
            )
        except (OSError, ValueError, IndexError):
            return None


def load_nvml() -> Any | None:
    """nvidia-ml-py, initialised; None if it is not installed, or there is no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _with_restarts(sample: ProcessSample, restarts: Restarts | None, now: float) -> ProcessSample:
    if restarts is None:
        return sample
    return msgspec.structs.replace(
        sample,
        num_restarts=restarts.num_restarts,
        restart_age=max(0.0, now - restarts.at),
        restart_reason=restarts.reason,
    )


def _stat(folder: Path) -> list[str]:
    """The fields of `/proc/PID/stat` from the third one, the state, on: the name may have spaces and brackets."""
    return (folder / "stat").read_text().rpartition(") ")[2].split()


def _pss(folder: Path) -> int:
    for line in (folder / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _devices(nvml: Any) -> tuple[list[DeviceSample], dict[int, int]]:
    """The cards, and the bytes of each process by its id; data that a card does not report is left out."""
    devices, bytes_of = [], dict[int, int]()
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):
            card = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(card)
            name = nvml.nvmlDeviceGetName(card)
            busy = nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100
            devices.append(
                DeviceSample(name=name, index=index, used_bytes=memory.used, total_bytes=memory.total, utilization=busy)
            )
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(card):
                bytes_of[process.pid] = bytes_of.get(process.pid, 0) + (process.usedGpuMemory or 0)
    return devices, bytes_of
