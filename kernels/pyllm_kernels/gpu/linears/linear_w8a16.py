"""`x @ weight.T` on a GPU, with weights in 8 bits and a scale for each group of features; x stays in floats.

`linear_tile.py` describes the order of sums. Does not know the files of such weights.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.linears.linear_tile import (
    float_tile,
    grid_of,
    group_block_k,
    grouped_launcher,
    has_tensor_cores,
    load_block,
    output_of,
    rows_and_outputs,
    scaled_groups,
    store_block,
)
from pyllm_kernels.quantised_shapes import w8a16_group_size


def linear_w8a16(
    x: Tensor,
    integers: Tensor,
    scales: Tensor,
    out: Tensor | None = None,
    *,
    batch_invariant: bool = False,
    card: Card | None = None,
) -> Tensor:
    group_size = w8a16_group_size(x, integers, scales, out)
    has_cores = has_tensor_cores(x, card)
    tile = float_tile(has_cores, len(x), w8a16_block_k(has_cores, group_size), batch_invariant)
    output = output_of(x, integers, out)
    launch = _launcher(x.shape[1], integers.shape[0], group_size, tile)
    launch(grid_of(output, tile), (x, integers.view(torch.uint8), scales, output), (x.shape[0], output.stride(0)))
    return output


def w8a16_block_k(has_cores: bool, group_size: int) -> int:
    return group_block_k(group_size, 64 if has_cores else 32)


# If the compiler knew that the number is 1, or a multiple of 16, it might choose another order.
@triton.jit(do_not_specialize=["tokens"])
def _w8a16_kernel(
    x_ptr,
    integers_ptr,
    scales_ptr,
    output_ptr,
    tokens,
    output_stride,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    rows, outputs = rows_and_outputs(tokens, OUT_FEATURES, BLOCK_M, BLOCK_N, GROUP_M)
    is_row, is_output = rows < tokens, outputs < OUT_FEATURES
    sums = w8a16_sums(
        x_ptr, rows, is_row, integers_ptr, scales_ptr, outputs, is_output, IN_FEATURES, GROUP_SIZE, BLOCK_K
    )
    store_block(output_ptr, output_stride, sums, rows, outputs, tokens, OUT_FEATURES)


_launcher = grouped_launcher(_w8a16_kernel)


@triton.jit
def w8a16_sums(
    x_ptr,
    rows,
    is_row,
    integers_ptr,  # as bytes
    scales_ptr,
    outputs,
    is_output,
    IN_FEATURES: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`weight @ x.T` for some outputs and rows; float32 [outputs, rows]."""
    GROUPS: tl.constexpr = (BLOCK_K + GROUP_SIZE - 1) // GROUP_SIZE
    GROUPS_A_ROW: tl.constexpr = IN_FEATURES // GROUP_SIZE
    columns = tl.arange(0, BLOCK_K)
    groups = tl.arange(0, GROUPS)
    integers_ptrs = integers_ptr + outputs[:, None] * IN_FEATURES + columns[None, :]
    scales_ptrs = scales_ptr + outputs[:, None] * GROUPS_A_ROW + groups[None, :]
    x_ptrs = x_ptr + rows[:, None] * IN_FEATURES + columns[None, :]
    accumulator = tl.zeros([outputs.shape[0], rows.shape[0]], dtype=tl.float32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        group = start // GROUP_SIZE
        integers = load_block(integers_ptrs + start, is_output, start + columns, IN_FEATURES, BLOCK_K)
        scales = load_block(scales_ptrs + group, is_output, group + groups, GROUPS_A_ROW, GROUPS)
        x = load_block(x_ptrs + start, is_row, start + columns, IN_FEATURES, BLOCK_K)
        weight = scaled_groups(_float32(integers), scales, None, x.dtype)
        accumulator = tl.dot(weight, tl.trans(x), accumulator, input_precision="ieee")
    return accumulator


@triton.jit
def _float32(integers):
    """The numbers of int8 bytes. A card adds floats faster than it converts integers."""
    # A byte from 0 to 255 as the last bits of 2^23 is their sum.
    above = ((integers ^ 0x80).to(tl.uint32) | 0x4B000000).to(tl.float32, bitcast=True)
    return above - 8388736.0  # 2^23 + 128
