"""Residual streams side by side: a program handles some columns of a token's streams, or a whole stream to reduce it.

A row's result does not depend on other rows. Does not know the layers that compute a stream.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Constant, Launcher

_BLOCK = 1024


def predict_streams(x: Tensor, coefficients: Tensor) -> Tensor:
    count = round(coefficients.shape[1] ** 0.5)
    tokens, hidden = x.shape[0], x.shape[1] // count
    output = x.new_empty(x.shape)
    launch = _predict_launcher(count, hidden)
    launch((tokens, ceil_div(hidden, _BLOCK), 1), (x, coefficients, output), (x.stride(0), coefficients.stride(0)))
    return output


def correct_streams(
    x: Tensor, activated: Tensor, coefficients: Tensor, active: int, scale: Tensor
) -> tuple[Tensor, Tensor]:
    tokens, hidden = activated.shape
    output, scaled = x.new_empty(x.shape), x.new_empty(activated.shape)
    tensors = x, activated, coefficients, scale, output, scaled
    strides = x.stride(0), activated.stride(0), coefficients.stride(0)
    _correct_launcher(coefficients.shape[1], active, hidden)((tokens, ceil_div(hidden, _BLOCK), 1), tensors, strides)
    return output, scaled


def add_to_streams(x: Tensor, other: Tensor) -> Tensor:
    (tokens, width), hidden = x.shape, other.shape[1]
    launch = _add_launcher(width, hidden)
    launch((tokens, ceil_div(width, _BLOCK), 1), (x, other), (x.stride(0), other.stride(0)))
    return x


def join_streams(x: Tensor, others: Tensor) -> Tensor:
    return torch.cat((x, others), dim=1)


def match_magnitudes(x: Tensor, other: Tensor) -> Tensor:
    (tokens, width), hidden = x.shape, other.shape[1]
    _match_launcher(hidden)((tokens, width // hidden, 1), (x, other), (x.stride(0), other.stride(0)))
    return x


def gaussian_top_k(x: Tensor, multiplier: float) -> Tensor:
    tokens, size = x.shape
    _top_k_launcher(size)((tokens, 1, 1), (x,), (x.stride(0), float(multiplier)))
    return x


@functools.cache
def _predict_launcher(count: int, hidden: int) -> Launcher:
    return Launcher(_predict_kernel, {"COUNT": count} | _column_constants(hidden))


@functools.cache
def _correct_launcher(count: int, active: int, hidden: int) -> Launcher:
    return Launcher(_correct_kernel, {"COUNT": count, "ACTIVE": active} | _column_constants(hidden))


@functools.cache
def _add_launcher(width: int, hidden: int) -> Launcher:
    return Launcher(_add_to_streams_kernel, {"WIDTH": width} | _column_constants(hidden))


@functools.cache
def _match_launcher(hidden: int) -> Launcher:
    return Launcher(_match_kernel, _row_constants(hidden))


@functools.cache
def _top_k_launcher(size: int) -> Launcher:
    return Launcher(_top_k_kernel, _row_constants(size))


def _column_constants(hidden: int) -> dict[str, Constant]:
    return {"HIDDEN": hidden, "BLOCK": _BLOCK, "num_warps": 4, "enable_fp_fusion": True}


def _row_constants(hidden: int) -> dict[str, Constant]:
    block = next_power_of_2(hidden)
    warps = min(max(block // 512, 1), 16)  # sixteen elements a thread, so that a row's loads are in flight at once
    return {"HIDDEN": hidden, "BLOCK": block, "num_warps": warps, "enable_fp_fusion": True}


@triton.jit
def _predict_kernel(
    x_ptr,
    coefficients_ptr,
    output_ptr,
    x_stride,
    coefficients_stride,
    COUNT: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    for stream in tl.static_range(COUNT):
        pointers = x_ptr + token * x_stride + columns
        total = tl.load(pointers + stream * HIDDEN, mask=mask, other=0.0).to(tl.float32)
        for other in tl.static_range(COUNT):
            factor = tl.load(coefficients_ptr + token * coefficients_stride + stream * COUNT + other)
            total += factor.to(tl.float32) * tl.load(pointers + other * HIDDEN, mask=mask, other=0.0).to(tl.float32)
        outputs = output_ptr + (token * COUNT + stream) * HIDDEN + columns
        tl.store(outputs, total.to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _correct_kernel(
    x_ptr,
    activated_ptr,
    coefficients_ptr,
    scale_ptr,
    output_ptr,
    scaled_ptr,
    x_stride,
    activated_stride,
    coefficients_stride,
    COUNT: tl.constexpr,
    ACTIVE: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    pointers = x_ptr + token * x_stride + columns
    difference = tl.load(activated_ptr + token * activated_stride + columns, mask=mask, other=0.0).to(tl.float32)
    difference -= tl.load(pointers + ACTIVE * HIDDEN, mask=mask, other=0.0).to(tl.float32)
    for stream in tl.static_range(COUNT):
        factor = 1 + tl.load(coefficients_ptr + token * coefficients_stride + stream).to(tl.float32)
        corrected = tl.load(pointers + stream * HIDDEN, mask=mask, other=0.0).to(tl.float32) + factor * difference
        outputs = output_ptr + (token * COUNT + stream) * HIDDEN + columns
        tl.store(outputs, corrected.to(output_ptr.dtype.element_ty), mask=mask)
        if stream == ACTIVE:
            scaled = corrected * tl.load(scale_ptr + columns, mask=mask, other=0.0).to(tl.float32)
            tl.store(scaled_ptr + token * HIDDEN + columns, scaled.to(scaled_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_to_streams_kernel(
    x_ptr, other_ptr, x_stride, other_stride, WIDTH: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    pointers = x_ptr + token * x_stride + columns
    total = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(other_ptr + token * other_stride + columns % HIDDEN, mask=mask, other=0.0).to(tl.float32)
    tl.store(pointers, total.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _match_kernel(x_ptr, other_ptr, x_stride, other_stride, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    pointers = x_ptr + token * x_stride + tl.program_id(1) * HIDDEN + columns
    stream = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(other_ptr + token * other_stride + columns, mask=mask, other=0.0).to(tl.float32)
    own, wanted = tl.sum(stream * stream, axis=0) / HIDDEN, tl.sum(other * other, axis=0) / HIDDEN
    matched = stream * tl.sqrt(wanted / tl.maximum(own, 1e-5))
    tl.store(pointers, matched.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _top_k_kernel(x_ptr, x_stride, multiplier, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    pointers = x_ptr + tl.program_id(0).to(tl.int64) * x_stride + columns
    row = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(row, axis=0) / HIDDEN
    apart = tl.where(mask, row - mean, 0.0)
    deviation = tl.sqrt(tl.sum(apart * apart, axis=0) / HIDDEN)
    kept = tl.maximum(row - (mean + multiplier * deviation), 0.0)
    tl.store(pointers, kept.to(x_ptr.dtype.element_ty), mask=mask)
