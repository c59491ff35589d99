"""`x @ weight.T` on a GPU with one tile and one order of sums for any number of rows, for `batch_invariant`.

cuBLAS picks a kernel by the batch, so a row's last bits depend on it. This kernel is slower, most of all for few rows:
it neither splits the sum nor depends on the batch. Quantised weights use their own kernels, with one tile.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.linears import linear_packed
from pyllm_kernels.gpu.linears.linear_tile import (
    Tile,
    grid_of,
    has_tensor_cores,
    load_block,
    options_of,
    output_of,
    rows_and_outputs,
    store_block,
)
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.ops.packed_linear import PackedLinear

_CORES_TILE = Tile(64, 64, 64, 4, 4)  # for tensor cores
_TILE = Tile(64, 32, 32, 4, 2)


def packed_linear(x: Tensor, packed: PackedLinear, out: Tensor | None = None, *, card: Card | None = None) -> Tensor:
    if packed.factors:
        return linear_packed.packed_linear(x, packed, out, batch_invariant=True, card=card)
    if packed.format not in {"float32", "bfloat16", "float16"}:
        raise ValueError(f"weights are {packed.format}: batch-invariant products on a GPU are of floats or quantised")
    out_features, in_features = packed.data.shape
    if x.ndim != 2 or x.shape[1] != in_features or x.dtype is not packed.data.dtype or not x.is_contiguous():
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)} with strides {x.stride()}: the weight takes contiguous "
            f"{packed.data.dtype} [tokens, {in_features}]"
        )
    output = output_of(x, packed.data, out)
    tile = _CORES_TILE if has_tensor_cores(x, card) else _TILE
    launch = _launcher(in_features, out_features, tile)
    launch(grid_of(output, tile), (x, packed.data, output), (x.shape[0], output.stride(0)))
    return output


@functools.cache
def _launcher(in_features: int, out_features: int, tile: Tile) -> Launcher:
    return Launcher(_linear_kernel, {"IN_FEATURES": in_features, "OUT_FEATURES": out_features} | options_of(tile))


# If the compiler knew that the number is 1, or a multiple of 16, it might choose another order.
@triton.jit(do_not_specialize=["tokens"])
def _linear_kernel(
    x_ptr,
    weight_ptr,
    output_ptr,
    tokens,
    output_stride,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    rows, outputs = rows_and_outputs(tokens, OUT_FEATURES, BLOCK_M, BLOCK_N, GROUP_M)
    is_row, is_output = rows < tokens, outputs < OUT_FEATURES
    sums = float_sums(x_ptr, rows, is_row, weight_ptr, outputs, is_output, IN_FEATURES, BLOCK_K)
    store_block(output_ptr, output_stride, tl.trans(sums), rows, outputs, tokens, OUT_FEATURES)


@triton.jit
def float_sums(
    left_ptr,
    left_rows,
    is_left,
    right_ptr,
    right_rows,
    is_right,
    IN_FEATURES: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`left @ right.T` for some rows of two matrices of floats; float32 [left rows, right rows]."""
    columns = tl.arange(0, BLOCK_K)
    left_ptrs = left_ptr + left_rows[:, None] * IN_FEATURES + columns[None, :]
    right_ptrs = right_ptr + right_rows[:, None] * IN_FEATURES + columns[None, :]
    accumulator = tl.zeros([left_rows.shape[0], right_rows.shape[0]], dtype=tl.float32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        left = load_block(left_ptrs + start, is_left, start + columns, IN_FEATURES, BLOCK_K)
        right = load_block(right_ptrs + start, is_right, start + columns, IN_FEATURES, BLOCK_K)
        accumulator = tl.dot(left, tl.trans(right), accumulator, input_precision="ieee")
    return accumulator
