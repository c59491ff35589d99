"""What the interpreter cannot show: every kernel compiles for Hopper, attention for older cards, and nothing spills.

Needs no GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.offline_driver import bytes_in_flight
from tests.tiers import full

KERNELS = {
    "_norm_kernel",
    "_add_norm_kernel",
    "_add_kernel",
    "_activation_kernel",
    "_add_bias_kernel",
    "_scale_and_cap_kernel",
    "_gate_kernel",
    "_predict_kernel",
    "_correct_kernel",
    "_add_to_streams_kernel",
    "_match_kernel",
    "_top_k_kernel",
    "_rope_kernel",
    "_rope_and_kv_write_kernel",
    "_copy_blocks_kernel",
    "_stage_blocks_kernel",
    "_linear_kernel",
    "_w4a16_kernel",
    "_w8a16_kernel",
    "_quantise_rows_kernel",
    "_w8a8_kernel",
    "_fp8_kernel",
    "_choose_kernel",
    "_count_kernel",
    "_align_kernel",
    "_grouped_kernel",
    "_weighted_sum_kernel",
    "_lora_down_kernel",
    "_lora_up_kernel",
    "_sample_kernel",
    "_tiles_kernel",
    "_shares_kernel",
    "_prefill_kernel",
    "_decode_split_kernel",
    "_merge_kernel",
    "_firsts_kernel",
    "_following_kernel",
    "_convolution_kernel",
    "_delta_kernel",
    "_matrices_kernel",
    "_chunks_kernel",
    "_state_space_kernel",
    "_state_space_chunks_kernel",
    "_selective_scan_kernel",
    "_gated_norm_kernel",
}


CASES = ("small_ops", "linears", "experts", "lora", "recurrences", "attention_128")
ROOT = Path(__file__).parent.parent.parent


def compile_for(capability: int, dtype: str, cases: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """The reports of `python -m benchmarks.gpu.compile_kernels`, which finds nothing to refuse."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    chosen = [word for case in cases for word in ("--only", case)]
    arguments = ["--capability", str(capability), "--dtype", dtype, "--quick", *chosen]
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "benchmarks.gpu.compile_kernels", *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"TRITON_CACHE_DIR": str(folder)},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def units_of(report: dict[str, Any]) -> set[str]:
    """Which tensor cores a kernel uses."""
    return {unit for unit in ("warpgroup_mma", "mma", "tensor_memory_mma") if report[unit]}


@pytest.mark.full
def test_every_kernel_compiles(tmp_path: Path) -> None:
    reports = compile_for(90, "bfloat16", CASES, tmp_path)
    assert {report["kernel"] for report in reports} == KERNELS
    # One version serves any number of samples.
    assert [report["kernel"] for report in reports].count("_sample_kernel") == 1
    # Few rows and many are multiplied by one unit, or a row's last bits might depend on their number.
    products = {"_prefill_kernel", "_w4a16_kernel", "_w8a16_kernel", "_w8a8_kernel", "_fp8_kernel", "_grouped_kernel"}
    for report in reports:
        if report["kernel"] in products:
            assert units_of(report) == {"warpgroup_mma"}
        if report["kernel"] == "_decode_split_kernel":
            assert units_of(report) == {"mma"}


@pytest.mark.full
def test_latents_of_deepseek_compile_for_hopper(tmp_path: Path) -> None:
    """In tiles of 32 rows, as 64 would spill."""
    reports = compile_for(90, "bfloat16", ("latents_512",), tmp_path)
    units = {report["kernel"]: units_of(report) for report in reports}
    assert units["_prefill_kernel"] == units["_decode_split_kernel"] == {"mma"}
    assert units["_head_products_kernel"] == {"warpgroup_mma"}


# What all kernels become for every card is shown by `make gpu-compile`.
@pytest.mark.parametrize(("capability", "units"), [(86, {"mma"}), full(75, set())])
def test_older_cards_have_other_tensor_cores(capability: int, units: set[str], tmp_path: Path) -> None:
    reports = compile_for(capability, "float16", ("attention_128",), tmp_path)
    found = [report for report in reports if report["kernel"] in {"_prefill_kernel", "_decode_split_kernel"}]
    assert len(found) == 4
    for report in found:
        assert units_of(report) == units  # For Turing, Triton has no tensor cores.


def test_what_is_in_flight_is_all_but_one_buffer_of_each_ring() -> None:
    ring = "%a = ttg.local_alloc : () -> !ttg.memdesc<{}, #shared, #smem, mutable> loc(#l)"
    once = "%b = ttg.local_alloc %c : (tensor<16x64xbf16, #b>) -> !ttg.memdesc<16x64xbf16, #shared, #smem> loc(#l)"
    loop = "%d = scf.for %e = %f to %g step %h : i32 {"
    text = [ring.format("3x64x128xbf16"), ring.format("2x64xi32"), once, loop, ring.format("2x16x16xf8E4M3FN"), loop]
    assert bytes_in_flight("\n".join(text)) == 2 * 64 * 128 * 2 + 64 * 4
