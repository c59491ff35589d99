"""What is done before the first request: it compiles whatever a step launches, and nobody notices it afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pyllm_kernels import select

from pyllm.workers.warm_up import launch_every_kernel, run_largest_step
from tests.families.tiny_families import write_tiny_family
from tests.tiers import full
from tests.tiny_model import write_tiny_model
from tests.workers.compile_steps import make_forward

ROOT = Path(__file__).parent.parent.parent
MAX_CALLS = 120


@pytest.mark.parametrize(("family", "kernels"), [("", ()), full("qwen3-moe", ("_grouped_kernel", "_align_kernel"))])
def test_no_step_waits_for_a_compilation(tmp_path: Path, family: str, kernels: tuple[str, ...]) -> None:
    folder = tmp_path / "model"
    model = write_tiny_family(folder, family) if family else write_tiny_model(folder)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.workers.compile_steps", model],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    blocks = ("_copy_blocks_kernel", "_stage_blocks_kernel")
    common = ("_sample_kernel", *blocks, "_tiles_kernel", "_prefill_kernel", "_merge_kernel")
    for kernel in (*common, *kernels):
        assert report["at_start"][kernel] > 0
    assert report["in_steps"] == {}
    # 108 of a dense layer, of which Triton's own for seven launches are 56. Eager steps cost the host some 0.6 us each.
    assert family or report["calls_of_a_layer"] <= MAX_CALLS


@torch.inference_mode()
def test_the_cache_is_left_as_it_was(tmp_path: Path) -> None:
    kernels = select("reference", "cpu")
    forward, kv_cache, _ = make_forward(write_tiny_model(tmp_path), kernels, "float32")
    kv_cache.memory.normal_()
    before = kv_cache.memory.clone()
    launch_every_kernel(forward, kernels, kv_cache)
    run_largest_step(forward, kv_cache.device, 5)
    assert torch.equal(kv_cache.memory, before)
