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
    """The experts of each token by its logits [tokens, experts] and their weights, by the rule of `Router`.

    Of equal experts, and of equal groups, the first are taken.
    """
    tokens, num_experts = logits.shape
    shape = (tokens, router.active)
    experts = torch.empty(shape, dtype=torch.int32, device=logits.device)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    block = next_power_of_2(num_experts)
    groups = router.groups
    _choose_kernel[(tokens,)](
        logits,
        router.correction,
        router.expert_factors,
        experts,
        weights,
        router.factor,
        router.tolerance,
        SCORES=router.scores,
        NUM_EXPERTS=num_experts,
        ACTIVE=router.active,
        NORMALISED=router.normalised,
        NUM_GROUPS=1 if groups is None else groups.count,
        ACTIVE_GROUPS=1 if groups is None else groups.active,
        BEST=1 if groups is None else groups.best,
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
    correction_ptr,
    expert_factors_ptr,
    experts_ptr,
    weights_ptr,
    factor,
    tolerance,
    SCORES: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    ACTIVE: tl.constexpr,
    NORMALISED: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    ACTIVE_GROUPS: tl.constexpr,
    BEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    is_expert = experts < NUM_EXPERTS
    logits = tl.load(logits_ptr + token * NUM_EXPERTS + experts, mask=is_expert, other=float("-inf")).to(tl.float32)
    if SCORES == "sigmoid":
        scores = tl.where(is_expert, 1 / (1 + tl.exp(-logits)), 0.0)
    else:
        scores = tl.exp(logits - tl.max(logits, axis=0))
        scores = scores / tl.sum(scores, axis=0)
    keys = logits  # Scores have the order of the logits, and equal ones may be of unequal logits.
    if correction_ptr is not None or NUM_GROUPS > 1:
        keys = scores
    if correction_ptr is not None:
        keys += tl.load(correction_ptr + experts, mask=is_expert, other=0.0)
    is_candidate = is_expert
    if NUM_GROUPS > 1:
        is_candidate = _in_best_groups(keys, experts, NUM_EXPERTS // NUM_GROUPS, NUM_GROUPS, ACTIVE_GROUPS, BEST, BLOCK)
    is_taken = _largest(keys, is_candidate, experts, ACTIVE, BLOCK)
    weights = scores
    if SCORES == "sparse_mixer":
        weights = _mix(logits, is_expert, experts, tolerance, ACTIVE, BLOCK)
    if NORMALISED:
        weights = weights / (tl.sum(tl.where(is_taken, weights, 0.0), axis=0) + 1e-20)
    weights *= factor
    if expert_factors_ptr is not None:
        weights *= tl.load(expert_factors_ptr + experts, mask=is_expert, other=0.0)
    places = token * ACTIVE + tl.cumsum(is_taken.to(tl.int32), axis=0) - 1
    tl.store(experts_ptr + places, experts, mask=is_taken)
    tl.store(weights_ptr + places, weights, mask=is_taken)


@triton.jit
def _mix(logits, is_expert, experts, tolerance, ACTIVE: tl.constexpr, BLOCK: tl.constexpr):
    """The weight of each expert that is one of the largest, by the rule of "sparse_mixer"."""
    weights = tl.zeros([BLOCK], dtype=tl.float32)
    left = tl.where(is_expert, 1, 0)
    for _ in tl.static_range(ACTIVE):
        is_best = _largest(logits, left > 0, experts, 1, BLOCK)
        largest = tl.sum(tl.where(is_best, logits, 0.0), axis=0)
        others = tl.where(left > 0, logits, largest)
        is_far = (largest - others) / tl.maximum(tl.abs(others), largest) > tolerance
        total = tl.sum(tl.where(is_far, 0.0, tl.where(left > 0, tl.exp(others - largest), 0.0)), axis=0)
        weights = tl.where(is_best, 1 / total, weights)
        left = tl.where(is_best, 0, left)
    return weights


@triton.jit
def _in_best_groups(
    keys,
    experts,
    SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    ACTIVE_GROUPS: tl.constexpr,
    BEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whether an expert is in one of the groups with the largest sums of their BEST largest keys."""
    group_keys = tl.full([BLOCK], float("-inf"), tl.float32)
    for group in tl.static_range(NUM_GROUPS):
        is_best = _largest(keys, experts // SIZE == group, experts, BEST, BLOCK)
        total = tl.sum(tl.where(is_best, keys, 0.0), axis=0)
        group_keys = tl.where(experts == group, total, group_keys)
    is_active = _largest(group_keys, experts < NUM_GROUPS, experts, ACTIVE_GROUPS, BLOCK).to(tl.int32)
    in_best = experts * 0
    for group in tl.static_range(NUM_GROUPS):
        of_group = tl.sum(tl.where(experts == group, is_active, 0), axis=0)
        in_best = tl.where(experts // SIZE == group, of_group, in_best)
    return in_best > 0


@triton.jit
def _largest(keys, is_candidate, indices, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Whether a candidate is one of the COUNT largest; of equal ones, the first are."""
    TAKEN: tl.constexpr = -(2**31)
    # Integers in the order of the keys: both zeros are equal, and NaNs are the largest.
    bits = tl.where(keys == 0.0, 0.0, keys).to(tl.int32, bitcast=True)
    ordered = tl.where(keys <= float("inf"), bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    ordered = tl.where(is_candidate, ordered, TAKEN)
    for _ in range(COUNT):
        first_best = tl.min(tl.where(ordered == tl.max(ordered, axis=0), indices, BLOCK), axis=0)
        ordered = tl.where(indices == first_best, TAKEN, ordered)
    return is_candidate & (ordered == TAKEN)


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
