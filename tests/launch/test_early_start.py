"""Processes that start before the model is known: taken where they fit it, else killed."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import CoreConfig
from pyllm.launch import topology
from pyllm.launch.early_start import EarlyStart
from pyllm.launch.resolve import resolve_config


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def core(model: str, folder: Path, **options: Any) -> CoreConfig:
    """The configuration of the only core of an engine on a CPU with these settings."""
    engine, checkpoint = resolve_config(engine_config({"model": model, "device": "cpu", **options}))
    (config,) = topology.core_configs(engine, checkpoint, str(folder), 1.0, 1.0)
    return config


def children() -> set[int]:
    """The ids of this process's children."""
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.parametrize("options", [{}, {"max_num_seqs": 7}, {"pipeline_parallel_size": 2}])
def test_both_are_taken_once(model: str, tmp_path: Path, listener: socket.socket, options: dict[str, Any]) -> None:
    config = core(model, tmp_path, **options)
    with EarlyStart(engine_config({"model": model, "device": "cpu", **options}), listener) as early:
        taken = [early.take_core(config), early.take_api()]
        assert [early.take_core(config), early.take_api()] == [None, None]
    for process in taken:
        assert process is not None
        assert process.pid in children()
        process.abandon()


@pytest.mark.parametrize(
    "options",
    [
        {"distributed_executor_backend": "uni"},
        {"kv_offloading_size": 1 << 20},
        {"kernel_backend": "triton"},
        {"model_impl": "transformers"},
    ],
)
def test_a_core_that_cannot_fit_is_not_started(model: str, listener: socket.socket, options: dict[str, Any]) -> None:
    before = children()
    with EarlyStart(engine_config({"model": model, "device": "cpu", **options}), listener):
        assert len(children() - before) == 1  # the API process


def test_what_is_not_taken_is_killed(model: str, tmp_path: Path, listener: socket.socket) -> None:
    before = children()
    with EarlyStart(engine_config({"model": model, "device": "cpu"}), listener) as early:
        started = children() - before
        assert early.take_core(core(model, tmp_path, kv_offloading_size=1 << 20)) is None
    assert not started & children()


@pytest.mark.parametrize("dead", ["core", "API process"])
def test_what_has_ended_meanwhile_is_not_taken(model: str, tmp_path: Path, listener: socket.socket, dead: str) -> None:
    config = core(model, tmp_path)
    before = children()
    with EarlyStart(engine_config({"model": model, "device": "cpu"}), listener) as early:
        first, second = sorted(children() - before)  # as they were started
        killed = psutil.Process(first if dead == "core" else second)
        killed.kill()
        psutil.wait_procs([killed], 30.0)
        taken = [early.take_core(config), early.take_api()]
    assert [process is None for process in taken] == [dead == "core", dead == "API process"]
    for process in taken:
        if process is not None:
            process.abandon()
    assert children() <= before
