"""`x @ weight.T` on a GPU, with int8 weights and a scale an output; x is quantised to int8 with a scale a row.

Sums of integers are exact, so their order does not matter.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card, card_of
from pyllm_kernels.gpu.linears.linear_tile import (
    Tile,
    grid_of,
    load_block,
    options_of,
    output_of,
    rows_and_outputs,
    store_block,
)
from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.quantised_shapes import check_w8a8

_QUANTISED_AT_ONCE = 1024
_OLDEST_INTEGER_DOT = 80  # For 7.5 Triton 3.9 has no products of int8.


def linear_w8a8(
    x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None, *, card: Card | None = None
) -> Tensor:
    check_w8a8(x, integers, scales, out)
    x_integers, x_scales = quantise_rows(x)
    has_dot = has_integer_dot(card or card_of(x.device))
    tile = w8a8_tile(len(x), has_dot)
    output = output_of(x, integers, out)
    launch = _launcher(x.shape[1], integers.shape[0], has_dot, tile)
    tensors = x_integers, x_scales, integers, scales, output
    launch(grid_of(output, tile), tensors, (x.shape[0], output.stride(0)))
    return output


@functools.cache
def _launcher(in_features: int, out_features: int, has_dot: bool, tile: Tile) -> Launcher:
    sizes = {"IN_FEATURES": in_features, "OUT_FEATURES": out_features, "INTEGER_DOT": has_dot}
    return Launcher(_w8a8_kernel, sizes | options_of(tile))


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of x as int8, and its scale."""
    tokens, in_features = x.shape
    integers = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scales = torch.empty(tokens, dtype=torch.float32, device=x.device)
    _quantise_launcher(in_features)((tokens, 1, 1), (x, integers, scales))
    return integers, scales


@functools.cache
def _quantise_launcher(in_features: int) -> Launcher:
    block = min(next_power_of_2(in_features), _QUANTISED_AT_ONCE)
    # If fused, the product and the addition that rounds it would be rounded only once.
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return Launcher(_quantise_rows_kernel, {"IN_FEATURES": in_features, "BLOCK": block} | options)


def has_integer_dot(card: Card) -> bool:
    """Whether the card multiplies int8."""
    return card.capability >= _OLDEST_INTEGER_DOT


def w8a8_tile(rows: int, has_dot: bool) -> Tile:
    """The tile for products of `rows` rows of integers; sums are exact, so any tile gives the same result."""
    if not has_dot:
        return Tile(16, 32, 64, 4, 2)
    return Tile(16, 64, 128, 4, 4) if rows <= 16 else Tile(64, 128, 128, 4, 3)


@triton.jit
def _quantise_rows_kernel(x_ptr, integers_ptr, scales_ptr, IN_FEATURES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, IN_FEATURES, BLOCK):
        pointers = x_ptr + row * IN_FEATURES + start + columns
        magnitudes = tl.abs(tl.load(pointers, mask=start + columns < IN_FEATURES, other=0.0).to(tl.float32))
        # Count a NaN as infinity, as a maximum would drop it.
        largest = tl.maximum(largest, tl.where(magnitudes < float("inf"), magnitudes, float("inf")))
    largest = tl.max(largest, axis=0)
    is_finite = largest < float("inf")
    is_tiny = largest < 7.888609052210118e-31  # 2^-100, below which 127 / largest is not finite.
    divisor = tl.where(is_tiny, 1.0, largest)
    scale = tl.where(is_tiny, 0.0, tl.div_rn(divisor, 127.0))
    inverse = tl.where(is_tiny, 0.0, tl.div_rn(127.0, divisor))
    tl.store(scales_ptr + row, tl.where(is_finite, scale, float("nan")))
    for start in range(0, IN_FEATURES, BLOCK):
        mask = start + columns < IN_FEATURES
        numbers = tl.load(x_ptr + row * IN_FEATURES + start + columns, mask=mask, other=0.0).to(tl.float32)
        # Near 1.5 * 2^23 float32 has no fractions: the sum is rounded to the nearest integer, ties to even.
        rounded = (tl.where(is_finite, numbers, 0.0) * inverse + 12582912.0) - 12582912.0
        tl.store(integers_ptr + row * IN_FEATURES + start + columns, rounded.to(tl.int8), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _w8a8_kernel(
    x_ptr,
    x_scales_ptr,
    integers_ptr,
    scales_ptr,
    output_ptr,
    tokens,
    output_stride,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    INTEGER_DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    rows, outputs = rows_and_outputs(tokens, OUT_FEATURES, BLOCK_M, BLOCK_N, GROUP_M)
    is_row, is_output = rows < tokens, outputs < OUT_FEATURES
    sums = w8a8_sums(
        x_ptr,
        x_scales_ptr,
        rows,
        is_row,
        integers_ptr,
        scales_ptr,
        outputs,
        is_output,
        IN_FEATURES,
        INTEGER_DOT,
        BLOCK_K,
    )
    store_block(output_ptr, output_stride, sums, rows, outputs, tokens, OUT_FEATURES)


@triton.jit
def w8a8_sums(
    x_integers_ptr,
    x_scales_ptr,
    rows,
    is_row,
    integers_ptr,
    scales_ptr,
    outputs,
    is_output,
    IN_FEATURES: tl.constexpr,
    INTEGER_DOT: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`weight @ x.T` for some outputs and rows; float32 [outputs, rows]."""
    columns = tl.arange(0, BLOCK_K)
    integers_ptrs = integers_ptr + outputs[:, None] * IN_FEATURES + columns[None, :]
    x_ptrs = x_integers_ptr + rows[:, None] * IN_FEATURES + columns[None, :]
    accumulator = tl.zeros([outputs.shape[0], rows.shape[0]], dtype=tl.int32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        integers = load_block(integers_ptrs + start, is_output, start + columns, IN_FEATURES, BLOCK_K)
        x = load_block(x_ptrs + start, is_row, start + columns, IN_FEATURES, BLOCK_K)
        if INTEGER_DOT:
            accumulator = tl.dot(integers, tl.trans(x), accumulator, out_dtype=tl.int32)  # Triton 3.6 infers no dtype.
        else:
            # Up to 1024 products add up to less than 2^24, so each partial sum is exact in float32.
            tl.static_assert(BLOCK_K <= 1024)
            partial = tl.dot(integers.to(tl.float32), tl.trans(x.to(tl.float32)), input_precision="ieee")
            accumulator += partial.to(tl.int32)
    scales = tl.load(scales_ptr + outputs, mask=is_output, other=0.0)
    x_scales = tl.load(x_scales_ptr + rows, mask=is_row, other=0.0)
    return (x_scales[None, :] * scales[:, None]) * accumulator.to(tl.float32)
