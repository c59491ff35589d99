"""Products of tokens with the low-rank matrices of their adapters on a GPU, as in S-LoRA (arXiv 2311.03285).

A program multiplies some tokens of one adapter. The product with `down` is computed in shares of the features, so that
a few tokens keep more of the card busy; the product with `up` adds these up in their order. There is one tile, and the
shares follow from the features alone, so a token's result does not depend on others. The host never learns which
adapters a step has, so a CUDA graph can hold the launches.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.expert_routing import align_block_size
from pyllm_kernels.gpu.linears.linear_tile import float_block_k, has_tensor_cores, load_block
from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Constant, Launcher
from pyllm_kernels.matrix_rows import FLOAT_DTYPES
from pyllm_kernels.ops.add_lora import LoraMatrices
from pyllm_kernels.ops.experts import Router
from pyllm_kernels.tensors import dtype_name

_BLOCK_M = 16
_RANKS = (16, 64)  # the least that a product takes, and the most rows of `down` for a program
_COLUMNS = 64
_FEATURES_A_SHARE = 1024
_MAX_SHARES = 8


def add_lora(x: Tensor, out: Tensor, adapters: Tensor, matrices: LoraMatrices, *, card: Card | None = None) -> Tensor:
    _check(x, out, adapters, matrices)
    (tokens, in_features), (num_adapters, max_rank, _) = x.shape, matrices.up.shape
    parts = len(matrices.sizes)
    if not tokens:
        return out
    shares = min(ceil_div(in_features, _FEATURES_A_SHARE), _MAX_SHARES)
    router = Router(num_adapters, 1, normalised=False, first=0, count=num_adapters)
    blocks = align_block_size(adapters[:tokens], router, _BLOCK_M)
    num_blocks = len(blocks.experts)
    inner = torch.empty((shares, tokens, parts * max_rank), dtype=torch.float32, device=x.device)
    block_k = float_block_k(has_tensor_cores(x, card))
    block_ranks = min(max(next_power_of_2(max_rank), _RANKS[0]), _RANKS[1])
    tables = matrices.ranks, blocks.pairs, blocks.experts
    launch_down = _down_launcher(in_features, parts, max_rank, shares, block_k, block_ranks)
    grid = num_blocks, parts * ceil_div(max_rank, block_ranks), shares
    launch_down(grid, (x, matrices.down, *tables, inner), (tokens,))
    launch_up = _up_launcher(matrices.sizes, max_rank, shares)
    grid = num_blocks, sum(ceil_div(size, _COLUMNS) for size in matrices.sizes), 1
    launch_up(grid, (inner, matrices.up, *tables, out), (tokens, out.stride(0)))
    return out


def _check(x: Tensor, out: Tensor, adapters: Tensor, matrices: LoraMatrices) -> None:
    """Raise a `ValueError` if the arguments do not fit each other."""
    (tokens, in_features), (num_adapters, max_rank, out_features) = x.shape, matrices.up.shape
    parts, dtype = len(matrices.sizes), x.dtype
    shapes = {
        "x": (x, dtype, (tokens, in_features)),
        "adapters": (adapters, torch.int32, (max(tokens, len(adapters)),)),
        "down": (matrices.down, dtype, (num_adapters, parts * max_rank, in_features)),
        "up": (matrices.up, dtype, (num_adapters, max_rank, out_features)),
        "ranks": (matrices.ranks, torch.int32, (num_adapters, parts)),
    }
    if dtype_name(dtype) not in FLOAT_DTYPES:
        raise ValueError(f"x is {dtype}: give float32, bfloat16 or float16")
    for name, (tensor, expected, shape) in shapes.items():
        if tensor.shape != shape or tensor.dtype is not expected or not tensor.is_contiguous():
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()}: give contiguous "
                f"{expected} {list(shape)}"
            )
    is_rows = out.stride(1) == 1 or out_features == 1
    if out.shape != (tokens, out_features) or out.dtype is not dtype or not is_rows:
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)} with strides {out.stride()}: give {dtype} "
            f"{[tokens, out_features]} with contiguous rows"
        )
    if sum(matrices.sizes) != out_features:
        raise ValueError(f"up has {out_features} columns, and the parts {list(matrices.sizes)}")


@functools.cache
def _down_launcher(
    in_features: int, parts: int, max_rank: int, shares: int, block_k: int, block_ranks: int
) -> Launcher:
    sizes = {"IN_FEATURES": in_features, "PARTS": parts, "MAX_RANK": max_rank, "SHARES": shares}
    tile = {"BLOCK_M": _BLOCK_M, "BLOCK_N": block_ranks, "BLOCK_K": block_k}
    return Launcher(_lora_down_kernel, sizes | tile | {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True})


@functools.cache
def _up_launcher(sizes: tuple[int, ...], max_rank: int, shares: int) -> Launcher:
    constants: dict[str, Constant] = {"OUT_FEATURES": sum(sizes), "SIZES": sizes, "PARTS": len(sizes)}
    constants |= {"MAX_RANK": max_rank, "SHARES": shares}
    tile = {"BLOCK_M": _BLOCK_M, "BLOCK_N": _COLUMNS, "BLOCK_R": _RANKS[0]}
    return Launcher(_lora_up_kernel, constants | tile | {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True})


# If the compiler knew that the number is 1, or a multiple of 16, it might choose another order.
@triton.jit(do_not_specialize=["tokens"])
def _lora_down_kernel(
    x_ptr,
    down_ptr,
    ranks_ptr,
    block_tokens_ptr,
    block_adapters_ptr,
    inner_ptr,
    tokens,
    IN_FEATURES: tl.constexpr,
    PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A share of the features of `x @ down.T`, for some tokens of an adapter and some rows of a part."""
    block, share = tl.program_id(0), tl.program_id(2)
    adapter = tl.load(block_adapters_ptr + block).to(tl.int64)
    if adapter < 0:
        return
    BLOCKS_A_PART: tl.constexpr = (MAX_RANK + BLOCK_N - 1) // BLOCK_N
    part = tl.program_id(1) // BLOCKS_A_PART
    first = tl.program_id(1) % BLOCKS_A_PART * BLOCK_N
    rank = tl.load(ranks_ptr + adapter * PARTS + part)
    if first >= rank:
        return
    rows = tl.load(block_tokens_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    places = first + tl.arange(0, BLOCK_N)
    is_row, is_place, features = rows >= 0, places < rank, tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows[:, None] * IN_FEATURES + features[None, :]
    outputs = part * MAX_RANK + places
    down_ptrs = down_ptr + (adapter * PARTS * MAX_RANK + outputs)[:, None] * IN_FEATURES + features[None, :]
    sums = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    STEPS: tl.constexpr = ((IN_FEATURES + BLOCK_K - 1) // BLOCK_K + SHARES - 1) // SHARES
    begin = share * STEPS * BLOCK_K
    for start in range(begin, tl.minimum(begin + STEPS * BLOCK_K, IN_FEATURES), BLOCK_K):
        left = load_block(x_ptrs + start, is_row, start + features, IN_FEATURES, BLOCK_K)
        right = load_block(down_ptrs + start, is_place, start + features, IN_FEATURES, BLOCK_K)
        sums = tl.dot(left, tl.trans(right), sums, input_precision="ieee")
    inner_rows = (share.to(tl.int64) * tokens + rows) * (PARTS * MAX_RANK)
    mask = is_row[:, None] & is_place[None, :]
    tl.store(inner_ptr + inner_rows[:, None] + outputs[None, :], sums, mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _lora_up_kernel(
    inner_ptr,
    up_ptr,
    ranks_ptr,
    block_tokens_ptr,
    block_adapters_ptr,
    out_ptr,
    tokens,
    out_stride,
    OUT_FEATURES: tl.constexpr,
    SIZES: tl.constexpr,
    PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Add the products with `up` for some tokens of an adapter and some columns of a part."""
    block = tl.program_id(0)
    adapter = tl.load(block_adapters_ptr + block).to(tl.int64)
    if adapter < 0:
        return
    part, first, end = _columns_of(tl.program_id(1), SIZES, PARTS, BLOCK_N)
    rank = tl.load(ranks_ptr + adapter * PARTS + part)
    if rank == 0:
        return
    rows = tl.load(block_tokens_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns, ranks = first + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_R)
    is_row, is_column = rows >= 0, columns < end
    sums = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, rank, BLOCK_R):
        places = start + ranks
        is_place = places < rank
        mask = is_row[:, None] & is_place[None, :]
        factors = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
        for share in tl.static_range(SHARES):
            inner_rows = (tl.cast(share, tl.int64) * tokens + rows) * (PARTS * MAX_RANK) + part * MAX_RANK
            factors += tl.load(inner_ptr + inner_rows[:, None] + places[None, :], mask=mask, other=0.0)
        up_ptrs = up_ptr + (adapter * MAX_RANK + places)[:, None] * OUT_FEATURES + columns[None, :]
        weights = tl.load(up_ptrs, mask=is_place[:, None] & is_column[None, :], other=0.0).to(tl.float32)
        sums = tl.dot(factors, weights, sums, input_precision="ieee")
    out_ptrs = out_ptr + rows[:, None] * out_stride + columns[None, :]
    mask = is_row[:, None] & is_column[None, :]
    total = tl.load(out_ptrs, mask=mask, other=0.0).to(tl.float32) + sums
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _columns_of(block, SIZES: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr):
    """The part of a block of columns, the block's first column, and the end of the part."""
    part, first, end = block * 0, block * 0, block * 0
    start, blocks = 0, 0
    for index in tl.static_range(PARTS):
        is_here = block >= blocks
        part = tl.where(is_here, index, part)
        first = tl.where(is_here, start + (block - blocks) * BLOCK_N, first)
        end = tl.where(is_here, start + SIZES[index], end)
        start += SIZES[index]
        blocks += (SIZES[index] + BLOCK_N - 1) // BLOCK_N
    return part, first, end
