"""`x @ weight.T` on a GPU, with weights in fp8 (e4m3) and a scale for all, for each output or for each block.

`linear_tile.py` describes the order of sums.
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
    float_block_k,
    float_tile,
    grid_of,
    has_tensor_cores,
    load_block,
    options_of,
    output_of,
    rows_and_outputs,
    store_block,
)
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.quantised_shapes import fp8_scale_block

# If a row has several scales, each tile's sum is in registers beside the whole sum: ptxas spills the larger tile.
_SPILLS_TWO_SUMS = 120


def linear_fp8(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    out: Tensor | None = None,
    block: tuple[int, int] = (128, 128),
    *,
    batch_invariant: bool = False,
    card: Card | None = None,
) -> Tensor:
    block_out, block_in = fp8_scale_block(x, weight, scales, out, block)
    tile = _tile(x, scales, batch_invariant, card or card_of(x.device))
    output = output_of(x, weight, out)
    launch = _launcher(x.shape[1], weight.shape[0], scales.shape[1], (block_out, block_in), tile)
    # Triton converts e4m3 from Ada on, and bytes on every card.
    tensors = x, weight.view(torch.uint8), scales, output
    launch(grid_of(output, tile), tensors, (x.shape[0], output.stride(0)))
    return output


@functools.cache
def _launcher(in_features: int, out_features: int, scales_a_row: int, block: tuple[int, int], tile: Tile) -> Launcher:
    sizes = {"IN_FEATURES": in_features, "OUT_FEATURES": out_features, "SCALES_A_ROW": scales_a_row}
    return Launcher(_fp8_kernel, sizes | {"BLOCK_OUT": block[0], "BLOCK_IN": block[1]} | options_of(tile))


def _tile(x: Tensor, scales: Tensor, batch_invariant: bool, card: Card) -> Tile:
    has_cores = has_tensor_cores(x, card)
    tile = float_tile(has_cores, len(x), float_block_k(has_cores), batch_invariant)
    if scales.shape[1] > 1 and card.capability >= _SPILLS_TWO_SUMS and tile.block_n > 64:
        return tile._replace(block_n=64)
    return tile


# If the compiler knew that the number is 1, or a multiple of 16, it might choose another order.
@triton.jit(do_not_specialize=["tokens"])
def _fp8_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    output_ptr,
    tokens,
    output_stride,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    SCALES_A_ROW: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    rows, outputs = rows_and_outputs(tokens, OUT_FEATURES, BLOCK_M, BLOCK_N, GROUP_M)
    is_row, is_output = rows < tokens, outputs < OUT_FEATURES
    sums = fp8_sums(
        x_ptr,
        rows,
        is_row,
        weight_ptr,
        scales_ptr,
        outputs,
        is_output,
        IN_FEATURES,
        SCALES_A_ROW,
        BLOCK_OUT,
        BLOCK_IN,
        BLOCK_K,
    )
    store_block(output_ptr, output_stride, sums, rows, outputs, tokens, OUT_FEATURES)


@triton.jit
def fp8_sums(
    x_ptr,
    rows,
    is_row,
    weight_ptr,
    scales_ptr,
    outputs,
    is_output,
    IN_FEATURES: tl.constexpr,
    SCALES_A_ROW: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`weight @ x.T` for some outputs and rows; float32 [outputs, rows]."""
    columns = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + outputs[:, None] * IN_FEATURES + columns[None, :]
    x_ptrs = x_ptr + rows[:, None] * IN_FEATURES + columns[None, :]
    scales_ptrs = scales_ptr + outputs // BLOCK_OUT * SCALES_A_ROW
    accumulator = tl.zeros([outputs.shape[0], rows.shape[0]], dtype=tl.float32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        bits = load_block(weight_ptrs + start, is_output, start + columns, IN_FEATURES, BLOCK_K)
        x = load_block(x_ptrs + start, is_row, start + columns, IN_FEATURES, BLOCK_K)
        weight = _e4m3(bits, x.dtype)
        if SCALES_A_ROW == 1:
            accumulator = tl.dot(weight, tl.trans(x), accumulator, input_precision="ieee")
        else:
            partial = tl.dot(weight, tl.trans(x), input_precision="ieee")
            scales = tl.load(scales_ptrs + start // BLOCK_IN, mask=is_output, other=0.0)
            accumulator = tl.fma(partial, tl.broadcast_to(scales[:, None], accumulator.shape), accumulator)
    if SCALES_A_ROW == 1:
        accumulator *= tl.load(scales_ptrs, mask=is_output, other=0.0)[:, None]
    return accumulator


@triton.jit
def _e4m3(bits, dtype: tl.constexpr):
    """The exact numbers of e4m3 bytes: exponent and mantissa are like float16's, except for the bias."""
    halves = ((bits & 0x80).to(tl.uint16) << 8) | ((bits & 0x7F).to(tl.uint16) << 7)
    numbers = halves.to(tl.float16, bitcast=True) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), numbers).to(dtype)
