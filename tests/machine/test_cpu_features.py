"""The processor's features, from texts of other machines."""

import pytest

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
