"""Steps of a worker in this process: a check that none makes the host wait for the device, and traces of two steps.

Needs pyllm itself. Plans are made by hand.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import WorkerConfig
from pyllm.wire.messages import Sampling, Step
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_runner import ModelRunner
from tests.plans import Planner, Row

Line = dict[str, Any]
Plan = tuple[Step, bytes]

_NUM_BLOCKS, _HOST_BLOCKS, _ROWS = 512, 64, 8
_PROMPT = 60
PENALTIES = Sampling(presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1, logit_bias={7: 1.0})


def loaded_runner(model: str, device: torch.device, dtype: str) -> ModelRunner:
    """A single rank, with a cache and a host pool."""
    engine: EngineConfig = engine_config(
        {
            "model": model,
            "device": device.type,
            "dtype": dtype,
            "kv_cache_dtype": dtype,
            "quantization": "none",
            "max_model_len": 512,
            "max_num_seqs": _ROWS,
            "max_num_batched_tokens": 512,
            "packed_cache_size": 0,
        }
    )
    config = WorkerConfig(engine=engine, checkpoint=read_checkpoint(model), rank=0, address="", rendezvous="")
    runner = ModelRunner(config, RankGroup())
    runner.load()
    runner.call("allocate", (_NUM_BLOCKS, _HOST_BLOCKS))
    return runner


def steps_without_waiting(runner: ModelRunner, on_card: bool) -> Iterator[Line]:
    """Begin each kind of step while torch raises if one of its ops makes the host wait."""
    for kind, plans in _kinds().items():
        try:
            for plan in plans():
                with no_synchronisation(on_card):
                    begun = runner.begin(*plan)
                begun.answer()
        except Exception as error:  # noqa: BLE001  # The other kinds are still tried.
            yield {"name": "gpu.step", "kind": kind, "ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
        else:
            yield {"name": "gpu.step", "kind": kind, "ok": True}


def _kinds() -> dict[str, Callable[[], Iterator[Plan]]]:
    return {
        "decode": lambda: _decodes(Sampling(temperature=0.0)),
        "mixed": _mixed,
        "top-p": lambda: _decodes(Sampling(temperature=0.8, top_p=0.9, top_k=40)),
        "penalties": lambda: _decodes(PENALTIES),
        "logprobs": lambda: _decodes(Sampling(temperature=0.0, logprobs=3)),
        "swaps": _swaps,
    }


def _decodes(sampling: Sampling, steps: int = 4) -> Iterator[Plan]:
    planner, prompt = Planner(_NUM_BLOCKS), list(range(3, 3 + _PROMPT))
    for slot in range(_ROWS):
        planner.start(slot, sampling, (prompt, []) if sampling.is_stateful else ([], []))
    yield planner.step(*(Row(slot, prompt) for slot in range(_ROWS)))
    for _ in range(steps):
        yield planner.step(*(Row(slot, [-1]) for slot in range(_ROWS)))


def _mixed(steps: int = 4) -> Iterator[Plan]:
    """A prompt in chunks beside rows that decode."""
    planner, prompt = Planner(_NUM_BLOCKS), list(range(3, 3 + _PROMPT))
    for slot in range(_ROWS):
        planner.start(slot)
    yield planner.step(*(Row(slot, prompt) for slot in range(_ROWS - 1)))
    for _ in range(steps):
        yield planner.step(*(Row(slot, [-1]) for slot in range(_ROWS - 1)), Row(_ROWS - 1, prompt[:30]))


def _swaps() -> Iterator[Plan]:
    """A row is swapped out beside another that decodes, and swapped in again."""
    planner, prompt = Planner(_NUM_BLOCKS, num_host_blocks=_HOST_BLOCKS), list(range(3, 3 + _PROMPT))
    for slot in range(2):
        planner.start(slot)
    yield planner.step(Row(0, prompt), Row(1, prompt))
    swapped = planner.swap_out(0)
    yield planner.step(Row(1, [-1]))
    planner.start(0)
    planner.swap_in(0, *swapped)
    yield planner.step(Row(0, [5]), Row(1, [-1]))


def traces(runner: ModelRunner, folder: Path, on_card: bool) -> Iterator[Line]:
    """Chrome traces of a step of one row, and of a mixed one; and the host's time to begin the step before.

    On a CPU that is the whole step.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_card]
    single = Planner(_NUM_BLOCKS)
    single.start(0)
    plans = {"batch 1": [single.step(Row(0, list(range(3, 40))))], "mixed": list(_mixed(3))}
    plans["batch 1"] += [single.step(Row(0, [-1])) for _ in range(3)]
    for kind, steps in plans.items():
        for plan in steps[:-2]:
            runner.run(*plan)
        started = time.perf_counter()
        begun = runner.begin(*steps[-2])
        seconds = time.perf_counter() - started
        begun.answer()
        with profile(activities=activities) as profiler:
            runner.run(*steps[-1])
        path = folder / f"{kind.replace(' ', '-')}.json"
        profiler.export_chrome_trace(str(path))
        launches = [event for event in profiler.events() or [] if "LaunchKernel" in event.name]
        yield {
            "name": "gpu.trace",
            "kind": kind,
            "file": path.name,
            "begin_us": round(seconds * 1e6, 1),
            "launches": len(launches),
            "bytes": path.stat().st_size,
        }


@contextmanager
def no_synchronisation(on_card: bool) -> Iterator[None]:
    """Make torch raise in this block if one of its ops makes the host wait for the card."""
    if not on_card:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
