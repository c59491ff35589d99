"""What is read of the processor is what the kernels find there."""

from pyllm_kernels import _cpu

from pyllm import processor


def test_flags_agree_with_the_instruction_set_that_the_kernels_choose() -> None:
    flags = processor.instructions()
    chosen = _cpu.instruction_set()
    assert (chosen == "amx") <= ("amx_int8" in flags)
    assert (chosen in ("avx512", "avx512_bf16", "amx")) <= ("avx512_vnni" in flags)
