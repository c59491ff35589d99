"""Threads of ranks, on machines that are made up."""

import logging
from pathlib import Path

import pytest

from pyllm.config.engine_settings import EngineConfig, ParallelConfig
from pyllm.config.option_reading import engine_config
from pyllm.launch.cpu_threads import threads_of_each_rank
from pyllm.launch.resolve import resolve_config
from tests.machine.made_machines import write_machine


@pytest.mark.parametrize(
    ("quota", "ranks", "threads"),
    [
        ("max 100000", 1, 16),
        ("max 100000", 3, 5),
        ("400000 100000", 1, 4),
        ("250000 100000", 1, 2),
        ("50000 100000", 1, 1),
        ("400000 100000", 2, 2),
        ("400000 100000", 8, 1),
        ("6400000 100000", 1, 16),
    ],
)
def test_a_quota_bounds_the_threads_and_the_log_says_so(
    quota: str, ranks: int, threads: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_machine(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": quota})
    parallel = ParallelConfig(tensor_parallel_size=ranks)
    with caplog.at_level(logging.INFO):
        assert threads_of_each_rank(parallel, set(range(16)), tmp_path) == threads
    is_said = f"of 16 cores: each rank computes with {threads} of them (--num-threads)" in caplog.text
    assert is_said == (quota not in {"max 100000", "6400000 100000"})


@pytest.mark.parametrize(("usable", "threads"), [({0, 1, 2, 3}, 2), ({0, 1}, 1), ({0, 2, 3, 4}, 3), ({1, 4}, 2)])
def test_hardware_threads_of_a_core_count_once(usable: set[int], threads: int, tmp_path: Path) -> None:
    cores = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}  # Linux says nothing about 4.
    files = {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": core for cpu, core in cores.items()}
    assert threads_of_each_rank(ParallelConfig(), usable, write_machine(tmp_path, files)) == threads


def test_a_number_that_is_given_is_taken() -> None:
    engine, _ = resolve_config(engine_config({"num_threads": 3}))
    assert engine.device.num_threads == 3
    engine, _ = resolve_config(EngineConfig())
    assert engine.device.num_threads is not None


def test_ranks_of_ray_have_the_cpus_that_they_take() -> None:
    parallel = ParallelConfig(distributed_executor_backend="ray", ray_num_cpus=4)
    assert threads_of_each_rank(parallel, {0}) == 4
