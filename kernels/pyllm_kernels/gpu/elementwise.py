"""What is done to each number of a row: activations, with a gate or without, a bias, a factor and a cap."""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import ceil_div

_BLOCK = 1024


def activation(x: Tensor, kind: str, gated: bool = True) -> Tensor:
    tokens, width = x.shape
    size = width // 2 if gated else width
    output = torch.empty((tokens, size), dtype=x.dtype, device=x.device)
    grid = (tokens, ceil_div(size, _BLOCK))
    _activation_kernel[grid](
        x, output, x.stride(0), KIND=kind, GATED=gated, SIZE=size, BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=True
    )
    return output


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    rows, size = x.shape
    grid = (rows, ceil_div(size, _BLOCK))
    _add_bias_kernel[grid](x, bias, x.stride(0), SIZE=size, BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=True)
    return x


def scale_and_cap(x: Tensor, factor: float, cap: float | None = None) -> Tensor:
    rows, size = x.shape
    grid = (rows, ceil_div(size, _BLOCK))
    cap_value, is_capped = (1.0, False) if cap is None else (cap, True)
    _scale_and_cap_kernel[grid](
        x, x.stride(0), factor, cap_value, CAPPED=is_capped, SIZE=size, BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=True
    )
    return x


@triton.jit
def _add_bias_kernel(x_ptr, bias_ptr, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    pointers = x_ptr + row * x_stride + columns
    bias = tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    total = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) + bias
    tl.store(pointers, total.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _scale_and_cap_kernel(x_ptr, x_stride, factor, cap, CAPPED: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    pointers = x_ptr + row * x_stride + columns
    scaled = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) * factor
    if CAPPED:
        scaled = cap * (2 * tl.sigmoid(tl.maximum(2 * scaled / cap, -80.0)) - 1)
    tl.store(pointers, scaled.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _activation_kernel(
    x_ptr,
    output_ptr,
    x_stride,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(x_ptr + token * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(x_ptr + token * x_stride + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
        output = activate_gated(gate, up, KIND)
    else:
        output = activate(gate, KIND)
    tl.store(output_ptr + token * SIZE + columns, output.to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def activate_gated(gate, up, KIND: tl.constexpr, CLAMP: tl.constexpr = None):
    """Numbers in float32. CLAMP, which is the limit and the alpha of a `ClampedSwiglu`, takes the place of KIND."""
    if CLAMP is None:
        output = activate(gate, KIND) * up
    else:
        LIMIT: tl.constexpr = CLAMP[0]
        ALPHA: tl.constexpr = CLAMP[1]
        gate = tl.where(gate > LIMIT, LIMIT, gate)  # so that what is not a number stays so
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        output = (up + 1) * gate * tl.sigmoid(ALPHA * gate)
    return output


@triton.jit
def activate(x, KIND: tl.constexpr):
    """Numbers in float32."""
    if KIND == "silu":
        output = x * tl.sigmoid(x)
    elif KIND == "gelu":
        output = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:
        tl.static_assert(KIND == "gelu_tanh")
        # (1 + tanh(z)) / 2 is sigmoid(2 z).
        twice = 1.5957691216057308 * (x + 0.044715 * x * x * x)
        output = x * tl.sigmoid(tl.maximum(twice, -80.0))
    return output
