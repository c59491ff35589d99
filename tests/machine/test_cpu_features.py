"""The processor's features: texts of other machines, and this machine's beside the kernels' own choice."""

import pytest
from pyllm_kernels import _cpu

from pyllm.machine import cpu_features

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: fpu fma f16c avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8

processor\t: 1
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: fpu fma f16c avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8
"""
EPYC = "processor : 0\nmodel name : AMD EPYC 7B13\nbugs : sysret_ss_attrs: no\nflags : fpu fma f16c avx2\n"
ARM = "processor : 0\nBogoMIPS : 50.00\nFeatures : fp asimd sve\nCPU implementer : 0x41\n"
# What the kernels choose, from the best: the first whose flags are all there and whose instructions are fast.
LEVELS = {
    "amx": {"amx_tile", "amx_int8", "amx_bf16", "avx512_vnni"},
    "avx512_bf16": {"avx512_bf16", "avx512_vnni"},
    "avx512_vnni": {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"},
    "avx2": {"avx2", "fma", "f16c"},
    "portable": set(),
}


@pytest.mark.parametrize(
    ("cpuinfo", "model", "flags"),
    [
        (XEON, "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", {"avx512_vnni", "amx_int8"}),
        (EPYC, "AMD EPYC 7B13", {"avx2"}),
        (ARM, None, set()),
        ("", None, set()),
    ],
)
def test_a_description_gives_the_model_and_its_flags(cpuinfo: str, model: str | None, flags: set[str]) -> None:
    fields = cpu_features.parse(cpuinfo)
    assert fields.get("model name") == model
    assert cpu_features.instructions(fields) & {"avx2", "avx512_vnni", "amx_int8"} >= flags
    assert ("amx_int8" in cpu_features.instructions(fields)) == (cpuinfo == XEON)


def test_a_value_may_have_a_colon() -> None:
    assert cpu_features.parse(EPYC)["bugs"] == "sysret_ss_attrs: no"


def test_the_kernels_choose_by_the_flags_of_this_machine() -> None:
    slow = {"avx512_bf16"} if cpu_features.about().get("vendor_id") == "GenuineIntel" else set()
    there = [level for level, flags in LEVELS.items() if flags <= cpu_features.instructions()]
    expected = next(level for level in there if level not in slow)
    assert _cpu.instruction_set() == expected
