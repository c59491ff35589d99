"""Samples of processes: those of a made-up /proc, of this process itself, and of a made-up driver."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyllm.supervision.process_samples import ProcessSampler
from pyllm.wire.messages import Restarts


def add(proc: Path, pid: int, parent: int, title: str, *, pss: int = 1, started: int = 100) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), *["0"] * 9, "150", "50", *["0"] * 4, "3", "0", str(started), *["0"] * 10]
    (folder / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(title.encode() + b"\0\0")
    (folder / "smaps_rollup").write_text(f"00-ff ---p 0 00:00 0 [rollup]\nRss: 9 kB\nPss: {pss} kB\n")


def test_the_descendants_of_one_process(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "uptime").write_text("100.0 5.0\n")
    (tmp_path / "self").mkdir()
    add(tmp_path, 1, 0, "init")
    add(tmp_path, 10, 1, "pyllm::serve", pss=7, started=10 * ticks)
    add(tmp_path, 11, 10, "pyllm::core-0", started=20 * ticks)
    add(tmp_path, 12, 11, "pyllm::worker-0-0", started=30 * ticks)
    add(tmp_path, 13, 1, "another")
    add(tmp_path, 15, 10, "/usr/bin/python3\0-m\0pyllm", started=40 * ticks)
    (tmp_path / "14").mkdir()  # It has ended since the folder was read.
    serve, core, worker, spare = ProcessSampler(lambda: [10], tmp_path).sample().processes
    assert [serve.name, core.name, worker.name] == ["pyllm::serve", "pyllm::core-0", "pyllm::worker-0-0"]
    assert spare.name == "python3"
    assert (serve.pid, serve.memory_bytes, serve.num_threads, serve.age) == (10, 7 << 10, 3, 90.0)
    assert serve.cpu_seconds == 200 / ticks
    assert serve.device_bytes is None


def test_within_a_second_it_is_the_same_sample(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("100.0 5.0\n")
    add(tmp_path, 10, 1, "first")
    now = 0.0
    sampler = ProcessSampler(lambda: [10], tmp_path, clock=lambda: now)
    assert [process.name for process in sampler.sample().processes] == ["first"]
    add(tmp_path, 11, 10, "second")
    now = 0.9
    assert len(sampler.sample().processes) == 1
    now = 1.0
    assert len(sampler.sample().processes) == 2


def test_a_real_process_and_its_child() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = {process.pid: process for process in ProcessSampler(lambda: [os.getpid()]).sample().processes}
        assert found[os.getpid()].memory_bytes > 1 << 20
        assert found[os.getpid()].cpu_seconds > 0
        assert found[child.pid].age <= found[os.getpid()].age
        child.communicate(b"\n")


class FakeNvml:
    """A driver with one card that tells all, and one that tells nothing."""

    NVMLError = ValueError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - as nvidia-ml-py has it, here and below
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 1:
            raise self.NVMLError("lost")
        return index

    def nvmlDeviceGetName(self, card: int) -> str:  # noqa: N802
        return f"card {card}"

    def nvmlDeviceGetMemoryInfo(self, card: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=5, total=9)

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=10, usedGpuMemory=3), SimpleNamespace(pid=11, usedGpuMemory=None)]


def test_cards_and_what_processes_have_on_them(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("100.0 5.0\n")
    add(tmp_path, 10, 1, "worker")
    add(tmp_path, 12, 10, "core")
    samples = ProcessSampler(lambda: [10], tmp_path, FakeNvml()).sample()
    assert {process.name: process.device_bytes for process in samples.processes} == {"worker": 3, "core": 0}
    (device,) = samples.devices
    assert (device.name, device.used_bytes, device.total_bytes, device.utilization) == ("card 0", 5, 9, 0.5)


def test_a_driver_that_knows_none_of_them_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("100.0 5.0\n")
    add(tmp_path, 20, 1, "worker")
    (process,) = ProcessSampler(lambda: [20], tmp_path, FakeNvml()).sample().processes
    assert process.device_bytes is None


def test_who_has_taken_the_place_of_others_says_why(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("100.0 5.0\n")
    add(tmp_path, 10, 1, "pyllm::serve")
    add(tmp_path, 11, 10, "pyllm::core-0")
    restarts = [Restarts(11, 3, 7.5, "core 0 exited with code 1"), Restarts(12, 1, 7.5, "it has ended since")]
    serve, core = (
        ProcessSampler(lambda: [10], tmp_path, clock=lambda: 10.0, restarts=lambda: restarts).sample().processes
    )
    assert (serve.num_restarts, serve.restart_age, serve.restart_reason) == (0, None, None)
    assert (core.num_restarts, core.restart_age, core.restart_reason) == (3, 2.5, "core 0 exited with code 1")
