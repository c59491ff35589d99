"""`x @ weight.T` on a GPU, with weights in 4 bits, and a scale and a minimum for each group of features.

`linear_tile.py` describes the order of sums. Does not know the files of such weights.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

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
from pyllm_kernels.quantised_shapes import w4a16_group_size


def linear_w4a16(
    x: Tensor,
    integers: Tensor,
    scales: Tensor,
    minimums: Tensor,
    out: Tensor | None = None,
    *,
    batch_invariant: bool = False,
    card: Card | None = None,
) -> Tensor:
    group_size = w4a16_group_size(x, integers, scales, minimums, out)
    has_cores = has_tensor_cores(x, card)
    tile = float_tile(has_cores, len(x), w4a16_block_k(has_cores, group_size), batch_invariant)
    output = output_of(x, integers, out)
    launch = _launcher(x.shape[1], integers.shape[0], group_size, tile)
    launch(grid_of(output, tile), (x, integers, scales, minimums, output), (x.shape[0], output.stride(0)))
    return output


def w4a16_block_k(has_cores: bool, group_size: int) -> int:
    return group_block_k(group_size, 128 if has_cores else 32)


# If the compiler knew that the number is 1, or a multiple of 16, it might choose another order.
@triton.jit(do_not_specialize=["tokens"])
def _w4a16_kernel(
    x_ptr,
    integers_ptr,
    scales_ptr,
    minimums_ptr,
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
    sums = w4a16_sums(
        x_ptr,
        rows,
        is_row,
        integers_ptr,
        scales_ptr,
        minimums_ptr,
        outputs,
        is_output,
        IN_FEATURES,
        GROUP_SIZE,
        BLOCK_K,
    )
    store_block(output_ptr, output_stride, sums, rows, outputs, tokens, OUT_FEATURES)


_launcher = grouped_launcher(_w4a16_kernel)


@triton.jit
def w4a16_sums(
    x_ptr,
    rows,
    is_row,
    integers_ptr,
    scales_ptr,
    minimums_ptr,
    outputs,
    is_output,
    IN_FEATURES: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`weight @ x.T` for some outputs and rows; float32 [outputs, rows]."""
    HALF: tl.constexpr = BLOCK_K // 2
    GROUPS: tl.constexpr = (BLOCK_K + GROUP_SIZE - 1) // GROUP_SIZE
    GROUPS_A_ROW: tl.constexpr = IN_FEATURES // GROUP_SIZE
    pairs = tl.arange(0, HALF)
    low = pairs // 16 * 32 + pairs % 16  # The feature of a byte's low half; that of its high half is 16 later.
    groups = tl.arange(0, GROUPS)
    integers_ptrs = integers_ptr + outputs[:, None] * (IN_FEATURES // 2) + pairs[None, :]
    group_offsets = outputs[:, None] * GROUPS_A_ROW + groups[None, :]
    x_ptrs = x_ptr + rows[:, None] * IN_FEATURES + low[None, :]
    accumulator = tl.zeros([outputs.shape[0], rows.shape[0]], dtype=tl.float32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        group = start // GROUP_SIZE
        integers = load_block(integers_ptrs + start // 2, is_output, start // 2 + pairs, IN_FEATURES // 2, HALF)
        scales = load_block(scales_ptr + group_offsets + group, is_output, group + groups, GROUPS_A_ROW, GROUPS)
        minimums = load_block(minimums_ptr + group_offsets + group, is_output, group + groups, GROUPS_A_ROW, GROUPS)
        x = load_block(x_ptrs + start, is_row, start + low, IN_FEATURES, BLOCK_K)
        weight = scaled_groups((integers & 15).to(tl.float32), scales, minimums, x.dtype)
        accumulator = tl.dot(weight, tl.trans(x), accumulator, input_precision="ieee")
        x = load_block(x_ptrs + start + 16, is_row, start + 16 + low, IN_FEATURES, BLOCK_K)
        weight = scaled_groups((integers >> 4).to(tl.float32), scales, minimums, x.dtype)
        accumulator = tl.dot(weight, tl.trans(x), accumulator, input_precision="ieee")
    return accumulator
