"""What a live engine recorded, with overlap and too few blocks, is decided again by a fresh process."""

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pyllm import AsyncEngine, SamplingParams, SchedulingParams
from pyllm.core.replay import replay_file
from tests.tiers import full
from tests.tiny_model import write_tiny_model

BLOCK_BYTES = 2 * 2 * 16 * 3 * 16 * 4  # keys and values, layers, tokens, heads, head_dim, float32
NUM_BLOCKS = 12
NUM_STREAMS = 10
PAIRS = SamplingParams(n=2, seed=3, max_tokens=48, ignore_eos=True)


async def read(engine: AsyncEngine, number: int) -> None:
    """One stream, of which every third is left after a few tokens."""
    prompt = list(range(number, number + 20 + number))
    stream = engine.generate(
        prompt, PAIRS, scheduling=SchedulingParams(priority=-number, tenant=f"tenant {number % 2}")
    )
    async for output in stream:
        if number % 3 == 0 and len(output.outputs[0].token_ids) > 4:
            break
    await stream.aclose()


@pytest.mark.parametrize("policy", ["priority", full("fcfs")])
async def test_a_live_recording_replays(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "recording"
    async with AsyncEngine(
        write_tiny_model(tmp_path / "model"),
        dtype="float32",
        kv_cache_memory_bytes=NUM_BLOCKS * BLOCK_BYTES,
        max_model_len=128,
        async_scheduling=True,
        scheduling_policy=policy,
        scheduler_recording=str(path),
        watermark=0.0,
        expected_growth=0.0,
    ) as engine:
        await asyncio.gather(*(read(engine, number) for number in range(NUM_STREAMS)))
        stats = await engine.stats()
    assert stats["num_preemptions"] > 0
    command = [sys.executable, "-m", "pyllm", "replay", str(path)]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True)
    replayed = json.loads(elsewhere.stdout)
    assert replayed == replay_file(path)
    assert not replayed["is_truncated"]
    # The last aborts may have come after the figures were asked for.
    assert replayed["num_steps"] >= stats["num_steps"] > 48
    assert replayed["stats"]["num_requests"] == 0
    assert replayed["stats"]["num_preemptions"] >= stats["num_preemptions"]


def workers() -> set[psutil.Process]:
    """Those of all engines that this process has begun."""
    return {process for process in psutil.Process().children(recursive=True) if "worker" in process.name()}


async def read_and_kill(worker: psutil.Process, engine: AsyncEngine) -> int:
    """One stream, whose worker is killed after some tokens; gives how many it had in the end."""
    async for output in engine.generate([1, 2, 3], SamplingParams(seed=1, max_tokens=400, ignore_eos=True)):
        if len(output.outputs[0].token_ids) >= 20:
            with contextlib.suppress(psutil.NoSuchProcess):  # It is dead already.
                worker.kill()
    return len(output.outputs[0].token_ids)


async def test_what_was_recorded_over_the_loss_of_a_device_replays(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    model = write_tiny_model(tmp_path / "model")
    others = workers()
    async with AsyncEngine(model, dtype="float32", scheduler_recording=str(path), warm_spares=False) as engine:
        (worker,) = workers() - others
        num_tokens = await read_and_kill(worker, engine)
        recoveries = (await engine.stats())["num_recoveries"]
    assert recoveries == 1
    command = [sys.executable, "-m", "pyllm", "replay", str(path)]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(elsewhere.stdout) == replay_file(path)
    assert json.loads(elsewhere.stdout)["num_steps"] > num_tokens
