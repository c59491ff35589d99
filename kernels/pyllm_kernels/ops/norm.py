"""Norms, alone and fused with the residual addition."""

from pyllm_kernels import cpu, reference
from pyllm_kernels.op import op
from pyllm_kernels.tensors import Tensor


@op(reference=reference.rms_norm, triton="pyllm_kernels.gpu.norm")
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`x / sqrt(mean(x²) + epsilon) * weight` over the last dimension, in float32 (arXiv 1910.07467).

    x [tokens, hidden] and weight [hidden], float32, float16 or bfloat16 -> [tokens, hidden] of x's dtype.
    """
    return cpu.rms_norm(x, weight, epsilon)


@op(reference=reference.add_rms_norm, triton="pyllm_kernels.gpu.norm")
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and normalise the sum; return the normalised sum and `add(x, residual, factor)`.

    x, residual [tokens, hidden] of one dtype; the sum is rounded to that dtype before it is normalised, so that the
    norm is that of the stream for the next layer. Both inputs stay unchanged.
    """
    return cpu.add_rms_norm(x, residual, weight, epsilon, factor)


@op(reference=reference.layer_norm, triton="pyllm_kernels.gpu.norm")
def layer_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`(x - mean) / sqrt(variance + epsilon) * weight` over the last dimension, in float32 (arXiv 1607.06450).

    Shapes and dtypes as for `rms_norm`. There is no bias.
    """
    return cpu.layer_norm(x, weight, epsilon)


@op(reference=reference.add_layer_norm, triton="pyllm_kernels.gpu.norm")
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Like `add_rms_norm`, with `layer_norm`."""
    return cpu.add_layer_norm(x, residual, weight, epsilon, factor)
