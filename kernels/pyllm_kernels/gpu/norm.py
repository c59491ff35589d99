"""Norms, alone and fused with the residual addition, and that addition alone: one program handles one row.

Does not know the use of the result. A row is reduced in one piece, so its result does not depend on other rows.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.launcher import Constant, Launcher


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None) -> Tensor:
    if weight.shape[0] == x.shape[1]:
        normed = _norm(x, weight, epsilon, None, centred=False)
    else:
        normed = _norm(x.reshape(-1, weight.shape[0]), weight, epsilon, None, centred=False).reshape(x.shape)
    return normed if out is None else out.copy_(normed)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    return _add_norm(x, residual, weight, epsilon, factor, None, centred=False)


def layer_norm(x: Tensor, weight: Tensor, epsilon: float, bias: Tensor | None = None) -> Tensor:
    return _norm(x, weight, epsilon, bias, centred=True)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return _add_norm(x, residual, weight, epsilon, factor, bias, centred=True)


def add(x: Tensor, residual: Tensor, factor: float = 1.0) -> Tensor:
    tokens, hidden = x.shape
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    _add_launcher(hidden)((tokens, 1, 1), (x, residual, total), (x.stride(0), residual.stride(0), factor))
    return total


def _norm(x: Tensor, weight: Tensor, epsilon: float, bias: Tensor | None, *, centred: bool) -> Tensor:
    tokens, hidden = x.shape
    normed = torch.empty_like(x, memory_format=torch.contiguous_format)
    tensors = x, weight, weight if bias is None else bias, normed
    _norm_launcher(hidden, centred, bias is not None)((tokens, 1, 1), tensors, (x.stride(0), epsilon))
    return normed


def _add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float, bias: Tensor | None, *, centred: bool
) -> tuple[Tensor, Tensor]:
    tokens, hidden = x.shape
    normed = torch.empty_like(x, memory_format=torch.contiguous_format)
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    tensors = x, residual, weight, weight if bias is None else bias, normed, total
    launch = _add_norm_launcher(hidden, centred, bias is not None)
    launch((tokens, 1, 1), tensors, (x.stride(0), residual.stride(0), epsilon, factor))
    return normed, total


@functools.cache
def _add_launcher(hidden: int) -> Launcher:
    return Launcher(_add_kernel, _row_constants(hidden))


@functools.cache
def _norm_launcher(hidden: int, centred: bool, biased: bool) -> Launcher:
    return Launcher(_norm_kernel, {"CENTRED": centred, "BIASED": biased} | _row_constants(hidden))


@functools.cache
def _add_norm_launcher(hidden: int, centred: bool, biased: bool) -> Launcher:
    return Launcher(_add_norm_kernel, {"CENTRED": centred, "BIASED": biased} | _row_constants(hidden))


def _row_constants(hidden: int) -> dict[str, Constant]:
    block = next_power_of_2(hidden)
    return {"HIDDEN": hidden, "BLOCK": block, "num_warps": _num_warps(block), "enable_fp_fusion": True}


def _num_warps(block: int) -> int:
    """The warps for sixteen elements a thread, so that a row's loads are in flight at once."""
    return min(max(block // 512, 1), 16)


@triton.jit
def _norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    normed_ptr,
    x_stride,
    epsilon,
    CENTRED: tl.constexpr,
    BIASED: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    x = tl.load(x_ptr + token * x_stride + columns, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    normed = _normalise(x, weight, mask, epsilon, CENTRED, HIDDEN)
    if BIASED:
        normed += tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(normed_ptr + token * HIDDEN + columns, normed.to(normed_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    normed_ptr,
    total_ptr,
    x_stride,
    residual_stride,
    epsilon,
    factor,
    CENTRED: tl.constexpr,
    BIASED: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    x = tl.load(x_ptr + token * x_stride + columns, mask=mask, other=0.0)
    residual = tl.load(residual_ptr + token * residual_stride + columns, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    total = (x.to(tl.float32) * factor + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
    normed = _normalise(total, weight, mask, epsilon, CENTRED, HIDDEN)
    if BIASED:
        normed += tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(total_ptr + token * HIDDEN + columns, total, mask=mask)
    tl.store(normed_ptr + token * HIDDEN + columns, normed.to(normed_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_kernel(
    x_ptr, residual_ptr, total_ptr, x_stride, residual_stride, factor, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    x = tl.load(x_ptr + token * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + token * residual_stride + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(total_ptr + token * HIDDEN + columns, (x * factor + residual).to(total_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _normalise(x, weight, mask, epsilon, CENTRED: tl.constexpr, HIDDEN: tl.constexpr):
    wide = x.to(tl.float32)
    if CENTRED:
        wide = tl.where(mask, wide - tl.sum(wide, axis=0) / HIDDEN, 0.0)
    mean_square = tl.sum(wide * wide, axis=0) / HIDDEN
    return wide * tl.rsqrt(mean_square + epsilon) * weight.to(tl.float32)
