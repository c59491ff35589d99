"""Sums and scales, number by number."""

from pyllm_kernels import cpu, reference
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.add, triton="pyllm_kernels.gpu.norm")
def add(x: Tensor, residual: Tensor, factor: float = 1.0) -> Tensor:
    """`x * factor + residual` in float32, rounded once to x's dtype; both [tokens, hidden] of one dtype."""
    return cpu.add(x, residual, factor)


@op(reference=reference.add_bias, triton="pyllm_kernels.gpu.elementwise")
def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Add `bias` [n], of x's dtype or float32, to each row of x [tokens, n] in place; return x."""
    return cpu.add_bias(x, bias)


@op(reference=reference.scale_and_cap, triton="pyllm_kernels.gpu.elementwise")
def scale_and_cap(x: Tensor, factor: float, cap: float | None = None) -> Tensor:
    """Multiply x [tokens, n] by a factor in place; with a cap, make each number `cap * tanh(number / cap)`; return x.

    Computes in float32 and rounds once. For logits and embeddings (Gemma 2, arXiv 2408.00118).
    """
    return cpu.scale_and_cap(x, factor, cap)
