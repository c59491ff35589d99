"""A loaded runner of one rank in this process, for the tests of the model side."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import WorkerConfig
from pyllm.families.rope import at_context
from pyllm.wire.messages import Step
from pyllm.workers.attention_backends import GROUP
from pyllm.workers.devices.device import Device
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_runner import ModelRunner
from tests.core.fake_distribution import install
from tests.plans import Planner, Row


def resolved(model: str, **options: object) -> EngineConfig:
    """Options as `resolve` leaves them, on the CPU."""
    defaults = {"model": model, "dtype": "float32", "max_model_len": 512, "device": "cpu", "max_num_seqs": 8}
    defaults |= {"max_num_batched_tokens": 2048, "num_threads": max(1, (os.cpu_count() or 1) // 2)}
    chosen = defaults | {"quantization": "none", "kv_cache_dtype": options.get("dtype", "float32")} | options
    return engine_config(chosen)


def worker_config(
    model: str, rank: int = 0, rendezvous: str = "", address: str = "", **options: object
) -> WorkerConfig:
    """The configuration of a rank, whose model has the RoPE of its context, as in a server."""
    engine, checkpoint = resolved(model, **options), read_checkpoint(model)
    assert engine.model.max_model_len is not None
    return WorkerConfig(
        engine=engine,
        checkpoint=msgspec.structs.replace(checkpoint, spec=at_context(checkpoint.spec, engine.model.max_model_len)),
        rank=rank,
        address=address,
        rendezvous=rendezvous,
    )


def offer_backend(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Install a package that offers the attention backend `theirs`, made by `value` (module:function)."""
    install(folder, GROUP, {"theirs": value})
    monkeypatch.syspath_prepend(folder)


def loaded_runner(
    model: str, num_blocks: int = 64, num_host_blocks: int = 0, *, device: Device | None = None, **options: object
) -> ModelRunner:
    runner = ModelRunner(worker_config(model, **options), RankGroup(), device=device)
    runner.load()
    num_states = runner.call("num_states") or 0
    runner.call("allocate", (num_blocks, num_host_blocks, num_states))
    return runner


def run(runner: ModelRunner, step: tuple[Step, bytes]) -> list[int]:
    """The tokens that a step samples."""
    return np.frombuffer(runner.run(*step).tokens, np.int32).tolist()


def greedy(runner: ModelRunner, planner: Planner, slot: int, prompt: list[int], num_tokens: int) -> list[int]:
    """Prefill and decode one sequence alone; the worker itself fills in each token that it sampled last."""
    planner.start(slot)
    tokens = run(runner, planner.step(Row(slot, prompt)))
    while len(tokens) < num_tokens:
        tokens += run(runner, planner.step(Row(slot, [-1])))
    return tokens
