"""The common parts of the linears: tiles, and functions to find, load and store the part of a program.

Each program adds up all features of its outputs, from the first on, in steps that follow from the weight and the dtype
of x. No sum is split between programs. For quantised weights the number of rows picks one of two tiles, except for
float32. Both tiles add up features in the same steps. That this makes rows bitwise equal across the two tiles has not
been tested on a GPU. `batch_invariant` uses one tile for any number of rows.

Quantised weights are the left factor of each product and x the right one. Hopper's tensor cores need 64 rows on the
left, but only 8 columns on the right, so a step of few tokens wastes little of them.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card, card_of
from pyllm_kernels.integers import ceil_div
from pyllm_kernels.launcher import Constant, Grid, Launcher

_ROWS_OF_A_GROUP = 8
_OLDEST_TENSOR_CORES = 80  # of those that Triton compiles for


class Tile(NamedTuple):
    """The part of one program: `block_m` tokens by `block_n` outputs, `block_k` features at a time."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def has_tensor_cores(x: Tensor, card: Card | None = None) -> bool:
    """Whether products of floats like x use tensor cores, on a card or on the card of x."""
    return x.element_size() == 2 and (card or card_of(x.device)).capability >= _OLDEST_TENSOR_CORES


def float_block_k(has_cores: bool) -> int:
    """The number of features at a time, for weights without groups."""
    return 64 if has_cores else 32


def group_block_k(group_size: int, widest: int) -> int:
    """The number of features at a time, up to `widest`, so that tiles and groups end together."""
    return next(size for size in (128, 64, 32) if size <= widest and group_size % size * (size % group_size) == 0)


def float_tile(has_cores: bool, rows: int, block_k: int, batch_invariant: bool) -> Tile:
    """The tile for products of `rows` rows of floats with weights that are converted to floats."""
    if not has_cores:  # Each product is an instruction then, and a larger tile does not fit into registers.
        return Tile(32, 32, block_k, 8, 2)
    if rows <= 16 and not batch_invariant:
        return Tile(16, 64, block_k, 4, 4)
    # With 4 warps, neither the conversion of 4-bit weights nor an expert's gate beside up fits into registers.
    return Tile(64, 128, block_k, 8, 3)


def output_of(x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
    return torch.empty((len(x), len(weight)), dtype=x.dtype, device=x.device) if out is None else out


def grid_of(output: Tensor, tile: Tile) -> Grid:
    tokens, out_features = output.shape
    return ceil_div(tokens, tile.block_m) * ceil_div(out_features, tile.block_n), 1, 1


def options_of(tile: Tile) -> dict[str, Constant]:
    return {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP_M": _ROWS_OF_A_GROUP,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": True,
    }


def grouped_launcher(kernel: Any) -> Callable[[int, int, int, Tile], Launcher]:
    """Launchers of a kernel for weights in groups, by features in, features out, features of a group, and tile.

    Each kernel has its own cache: in a shared one the kernel would be in the key, and Triton hashes its whole text.
    """

    @functools.cache
    def launcher(in_features: int, out_features: int, group_size: int, tile: Tile) -> Launcher:
        sizes = {"IN_FEATURES": in_features, "OUT_FEATURES": out_features, "GROUP_SIZE": group_size}
        return Launcher(kernel, sizes | options_of(tile))

    return launcher


@triton.jit
def rows_and_outputs(
    tokens, OUT_FEATURES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr
):
    """The rows and outputs of a program."""
    block_m, block_n = blocks_of_program(tl.cdiv(tokens, BLOCK_M), OUT_FEATURES, BLOCK_N, GROUP_M)
    rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    return rows.to(tl.int64), outputs.to(tl.int64)


@triton.jit
def blocks_of_program(blocks_m, OUT_FEATURES: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The blocks of a program. Adjacent programs share rows of the weight, GROUP_M blocks of tokens at a time."""
    program = tl.program_id(0)
    programs_of_group = GROUP_M * tl.cdiv(OUT_FEATURES, BLOCK_N)
    first_m = program // programs_of_group * GROUP_M
    size_m = tl.minimum(blocks_m - first_m, GROUP_M)
    block_m = first_m + program % programs_of_group % size_m
    block_n = program % programs_of_group // size_m
    return block_m, block_n


@triton.jit
def load_block(pointers, is_row, columns, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Some columns of a matrix of SIZE columns; 0 past its end, with a mask only if BLOCK does not divide SIZE."""
    if SIZE % BLOCK == 0:
        numbers = tl.load(pointers, mask=is_row[:, None], other=0)
    else:
        numbers = tl.load(pointers, mask=is_row[:, None] & (columns < SIZE)[None, :], other=0)
    return numbers


@triton.jit
def store_block(output_ptr, output_stride, sums, rows, outputs, tokens, OUT_FEATURES: tl.constexpr):
    pointers = output_ptr + rows[:, None] * output_stride + outputs[None, :]
    mask = (rows < tokens)[:, None] & (outputs < OUT_FEATURES)[None, :]
    tl.store(pointers, tl.trans(sums).to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def scaled_groups(integers, scales, minimums, dtype: tl.constexpr):
    """`scale * integer + minimum`, for float32 integers [outputs, n] in one group for each column of `scales`.

    A float16 scale has 11 bits and an integer 8: their product is exact in float32, so the result is rounded once,
    fused or not. `minimums` may be None.
    """
    OUTPUTS: tl.constexpr = integers.shape[0]
    WIDTH: tl.constexpr = integers.shape[1]
    GROUPS: tl.constexpr = scales.shape[1]
    weights = tl.reshape(integers, [OUTPUTS, GROUPS, WIDTH // GROUPS]) * scales.to(tl.float32)[:, :, None]
    if minimums is not None:
        weights += minimums.to(tl.float32)[:, :, None]
    return tl.reshape(weights, [OUTPUTS, WIDTH]).to(dtype)
