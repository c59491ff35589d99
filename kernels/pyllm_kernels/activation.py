"""Gated activations: the two halves of a projection become one. It does not know the projection."""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def silu_and_mul(x: Tensor) -> Tensor:
    tokens, width = x.shape
    intermediate = width // 2
    output = torch.empty((tokens, intermediate), dtype=x.dtype, device=x.device)
    grid = (tokens, triton.cdiv(intermediate, _BLOCK))
    _silu_and_mul_kernel[grid](
        x, output, x.stride(0), INTERMEDIATE=intermediate, BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=True
    )
    return output


@triton.jit
def _silu_and_mul_kernel(x_ptr, output_ptr, x_stride, INTERMEDIATE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < INTERMEDIATE
    gate = tl.load(x_ptr + token * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * x_stride + INTERMEDIATE + columns, mask=mask, other=0.0).to(tl.float32)
    output = gate * tl.sigmoid(gate) * up
    tl.store(output_ptr + token * INTERMEDIATE + columns, output.to(output_ptr.dtype.element_ty), mask=mask)
