"""The choice of experts for each token, and the tokens of each expert in blocks for products with its matrices.

The number of programs follows from the number of tokens alone, so that a CUDA graph can hold them; the host never
learns the choice. No result depends on the order of programs. Does not know the computation of an expert.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.ops.experts import Router

_PAIRS_AT_ONCE = 1024
_EXPERTS_A_WARP = 256


class Choice(NamedTuple):
    """The experts of each token in ascending order, int32, and their weights, float32: [tokens, active]."""

    experts: Tensor
    weights: Tensor


class Blocks(NamedTuple):
    """Pairs of a token and one of its experts, sorted by expert, in blocks of one expert each.

    Pair `token * active + i` is a token and the i-th of its experts. A block is padded with -1.
    """

    pairs: Tensor  # int32 [blocks, rows of a block]
    experts: Tensor  # int32 [blocks], relative to this rank's first expert; -1: the block is empty


def choose_experts(logits: Tensor, router: Router) -> Choice:
    """The experts with the largest logits [tokens, experts] of each token and their weights, by the rule of `Router`.

    Of equal logits the first are taken.
    """
    tokens, num_experts = logits.shape
    shape = (tokens, router.active)
    experts = torch.empty(shape, dtype=torch.int32, device=logits.device)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    block = next_power_of_2(num_experts)
    _choose_kernel[(tokens,)](
        logits,
        experts,
        weights,
        NUM_EXPERTS=num_experts,
        ACTIVE=router.active,
        NORMALISED=router.normalised,
        BLOCK=block,
        num_warps=min(max(block // _EXPERTS_A_WARP, 1), 4),
        enable_fp_fusion=True,
    )
    return Choice(experts, weights)


def align_block_size(experts: Tensor, router: Router, block_m: int) -> Blocks:
    """Sort the pairs of `choose_experts` by expert, in blocks of `block_m` rows, without experts of other ranks."""
    num_pairs, device = experts.numel(), experts.device
    # Each expert with pairs has one block for the first, and at most one more for each `block_m` further pairs.
    most_taken = min(num_pairs, router.count)
    num_blocks = most_taken + (num_pairs - most_taken) // block_m
    pairs = torch.empty((num_blocks, block_m), dtype=torch.int32, device=device)
    block_experts = torch.empty(num_blocks, dtype=torch.int32, device=device)
    counts = torch.empty(router.count, dtype=torch.int32, device=device)
    _count_kernel[(router.count,)](
        experts, counts, num_pairs, FIRST=router.first, CHUNK=_PAIRS_AT_ONCE, num_warps=4, enable_fp_fusion=True
    )
    _align_kernel[(router.count + 1,)](
        experts,
        counts,
        pairs,
        block_experts,
        num_pairs,
        num_blocks,
        FIRST=router.first,
        COUNT=router.count,
        BLOCK_M=block_m,
        BLOCK_EXPERTS=next_power_of_2(router.count),
        CHUNK=_PAIRS_AT_ONCE,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return Blocks(pairs, block_experts)


@triton.jit
def _choose_kernel(
    logits_ptr,
    experts_ptr,
    weights_ptr,
    NUM_EXPERTS: tl.constexpr,
    ACTIVE: tl.constexpr,
    NORMALISED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    TAKEN: tl.constexpr = -(2**31)
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    is_expert = experts < NUM_EXPERTS
    scores = tl.load(logits_ptr + token * NUM_EXPERTS + experts, mask=is_expert, other=float("-inf")).to(tl.float32)
    # Integers in the order of the scores: both zeros are equal, and NaNs are the largest.
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    keys = tl.where(scores <= float("inf"), bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    keys = tl.where(is_expert, keys, TAKEN)
    for _ in range(ACTIVE):
        first_best = tl.min(tl.where(keys == tl.max(keys, axis=0), experts, BLOCK), axis=0)
        keys = tl.where(experts == first_best, TAKEN, keys)
    is_taken = is_expert & (keys == TAKEN)
    weights = tl.exp(scores - tl.max(scores, axis=0))
    weights = weights / tl.sum(weights, axis=0)
    if NORMALISED:
        weights = weights / tl.sum(tl.where(is_taken, weights, 0.0), axis=0)
    places = token * ACTIVE + tl.cumsum(is_taken.to(tl.int32), axis=0) - 1
    tl.store(experts_ptr + places, experts, mask=is_taken)
    tl.store(weights_ptr + places, weights, mask=is_taken)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(experts_ptr, counts_ptr, num_pairs, FIRST: tl.constexpr, CHUNK: tl.constexpr):
    expert = tl.program_id(0)
    counts = tl.zeros([CHUNK], dtype=tl.int32)
    for start in range(0, num_pairs, CHUNK):
        counts += _has_expert(experts_ptr, start, num_pairs, FIRST + expert, CHUNK)
    tl.store(counts_ptr + expert, tl.sum(counts, axis=0))


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def _align_kernel(
    experts_ptr,
    counts_ptr,
    pairs_ptr,
    block_experts_ptr,
    num_pairs,
    num_blocks,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    expert = tl.program_id(0)
    experts, lanes = tl.arange(0, BLOCK_EXPERTS), tl.arange(0, CHUNK)
    counts = tl.load(counts_ptr + experts, mask=experts < COUNT, other=0)
    blocks = tl.cdiv(counts, BLOCK_M)
    first_block = tl.sum(tl.where(experts < expert, blocks, 0), axis=0)
    # The program after those of the experts marks the remaining blocks as empty.
    end_block = num_blocks
    block_expert = -1
    if expert < COUNT:
        end_block = first_block + tl.sum(tl.where(experts == expert, blocks, 0), axis=0)
        block_expert = expert
        first_row = pairs_ptr + first_block.to(tl.int64) * BLOCK_M
        placed = tl.sum(lanes * 0, axis=0)
        for start in range(0, num_pairs, CHUNK):
            has_expert = _has_expert(experts_ptr, start, num_pairs, FIRST + expert, CHUNK)
            places = placed + tl.cumsum(has_expert, axis=0) - has_expert
            tl.store(first_row + places, start + lanes, mask=has_expert == 1)
            placed += tl.sum(has_expert, axis=0)
        padding = placed + tl.arange(0, BLOCK_M)
        tl.store(first_row + padding, padding * 0 - 1, mask=padding < (end_block - first_block) * BLOCK_M)
    for start in range(first_block, end_block, CHUNK):
        tl.store(block_experts_ptr + start + lanes, lanes * 0 + block_expert, mask=start + lanes < end_block)


@triton.jit
def _has_expert(experts_ptr, start, num_pairs, expert, CHUNK: tl.constexpr):
    """1 for each pair from `start` on with the expert, 0 for the others."""
    pairs = start + tl.arange(0, CHUNK)
    return (tl.load(experts_ptr + pairs, mask=pairs < num_pairs, other=-1) == expert).to(tl.int32)
