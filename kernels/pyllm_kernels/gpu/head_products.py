"""Products of each head with its own matrix: a program has some tokens of one head and some outputs.

As in `linears/linear_tile.py`, each program adds up all features of its outputs in steps that follow from the dtype;
the number of tokens picks one of two tiles, and `batch_invariant` uses one tile for any number of tokens. Does not know
attention.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.linears.linear_tile import Tile, float_block_k, float_tile, has_tensor_cores, load_block
from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.ops.packed_linear import PackedLinear


def head_products(
    x: Tensor, packed: PackedLinear, keep: bool, *, batch_invariant: bool = False, card: Card | None = None
) -> Tensor:
    (tokens, heads, size), (rows, in_features) = x.shape, packed.data.shape
    if packed.factors or x.dtype is not packed.data.dtype:
        raise ValueError(f"matrices of heads are {packed.format}, and x is {x.dtype}: give floats of one dtype")
    if rows % heads or size < in_features or x.stride()[1:] != (size, 1):
        raise ValueError(
            f"x is {list(x.shape)} with strides {x.stride()}: {rows} outputs of {in_features} features take contiguous "
            "heads, of which each has as many outputs and at least as many numbers"
        )
    out_features, kept = rows // heads, size - in_features if keep else 0
    output = x.new_empty((tokens, heads, kept + out_features))
    has_cores = has_tensor_cores(x, card)
    tile = float_tile(has_cores, tokens, float_block_k(has_cores), batch_invariant)
    launch = _launcher(heads, size, in_features, out_features, kept, tile)
    grid = ceil_div(out_features, tile.block_n), heads, ceil_div(tokens, tile.block_m)
    launch(grid, (x, packed.data, output), (tokens, x.stride(0)))
    return output


@functools.cache
def _launcher(heads: int, size: int, in_features: int, out_features: int, kept: int, tile: Tile) -> Launcher:
    constants = {
        "HEADS": heads,
        "SIZE": size,
        "IN_FEATURES": in_features,
        "OUT_FEATURES": out_features,
        "KEPT": kept,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "BLOCK_KEPT": next_power_of_2(max(kept, 1)),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": True,
    }
    return Launcher(_head_products_kernel, constants)


# If the compiler knew that the number is 1, or a multiple of 16, it might choose another order.
@triton.jit(do_not_specialize=["tokens"])
def _head_products_kernel(
    x_ptr,
    weight_ptr,
    output_ptr,
    tokens,
    x_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
):
    head = tl.program_id(1)
    rows = tl.program_id(2).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_output = rows < tokens, outputs < OUT_FEATURES
    columns = tl.arange(0, BLOCK_K)
    x_rows = x_ptr + rows[:, None] * x_stride + head * SIZE
    output_rows = output_ptr + (rows[:, None] * HEADS + head) * (KEPT + OUT_FEATURES)
    x_ptrs = x_rows + (SIZE - IN_FEATURES) + columns[None, :]
    weight_rows = head.to(tl.int64) * OUT_FEATURES + outputs
    weight_ptrs = weight_ptr + weight_rows[:, None] * IN_FEATURES + columns[None, :]
    sums = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        weight = load_block(weight_ptrs + start, is_output, start + columns, IN_FEATURES, BLOCK_K)
        x = load_block(x_ptrs + start, is_row, start + columns, IN_FEATURES, BLOCK_K)
        sums = tl.dot(weight, tl.trans(x), sums, input_precision="ieee")
    numbers = tl.trans(sums).to(output_ptr.dtype.element_ty)
    tl.store(output_rows + KEPT + outputs[None, :], numbers, mask=is_row[:, None] & is_output[None, :])
    kept_columns = tl.arange(0, BLOCK_KEPT)[None, :]
    is_kept = rows < tl.where(tl.program_id(0) == 0, tokens, 0)  # One program of a row copies them.
    mask = is_kept[:, None] & (kept_columns < KEPT)
    tl.store(output_rows + kept_columns, tl.load(x_rows + kept_columns, mask=mask), mask=mask)
