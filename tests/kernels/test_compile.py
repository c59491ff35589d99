"""What the interpreter cannot show: every kernel compiles for Hopper, Ampere and Turing, and fits. Needs no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {
    "_norm_kernel",
    "_add_norm_kernel",
    "_add_kernel",
    "_activation_kernel",
    "_add_bias_kernel",
    "_scale_and_cap_kernel",
    "_rope_and_kv_write_kernel",
    "_copy_blocks_kernel",
    "_linear_kernel",
    "_w4a16_kernel",
    "_quantise_rows_kernel",
    "_w8a8_kernel",
    "_fp8_kernel",
    "_choose_kernel",
    "_count_kernel",
    "_align_kernel",
    "_grouped_kernel",
    "_weighted_sum_kernel",
    "_sample_kernel",
    "_tiles_kernel",
    "_shares_kernel",
    "_prefill_kernel",
    "_decode_split_kernel",
    "_merge_kernel",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("capability", "dtype", "prefill_unit", "decode_unit"),
    [(90, "bfloat16", "warpgroup_mma", "mma"), (86, "float16", "mma", "mma"), (75, "float16", None, None)],
)
def test_every_kernel_compiles(
    capability: int, dtype: str, prefill_unit: str | None, decode_unit: str | None, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("compile_offline.py"), str(capability), dtype],
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert process.returncode == 0, process.stderr
    reports = [json.loads(line) for line in process.stdout.splitlines()]
    assert {report["kernel"] for report in reports} == KERNELS
    # One version serves any number of samples.
    assert [report["kernel"] for report in reports].count("_sample_kernel") == 1
    units = {report["kernel"]: report for report in reports}
    for kernel, unit in (("_prefill_kernel", prefill_unit), ("_decode_split_kernel", decode_unit)):
        used = {name for name in ("warpgroup_mma", "mma") if units[kernel][name]}
        assert used == ({unit} if unit else set())  # For Turing, Triton has no tensor cores.
    # Few rows and many are multiplied by one unit, or a row's last bits might depend on their number.
    for kernel in ("_w4a16_kernel", "_w8a8_kernel", "_fp8_kernel", "_grouped_kernel"):
        for report in (report for report in reports if report["kernel"] == kernel):
            used = {name for name in ("warpgroup_mma", "mma") if report[name]}
            assert used == ({prefill_unit} if prefill_unit else set())
