"""Sampling from logits and uniform numbers, a program a sample: temperature, min-p, top-k, top-p, inverse CDF.

Nothing is sorted: top-k and top-p each search for the logit of their cut, by the count or sum of weights above four
pivots at once, in passes over the row. Knows no requests, and needs no exchange with the host.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import next_power_of_2

# The parts of a row that a program loads at once, each of LANES logits, and the warps that hold a lane a thread.
_LANES, _PARTS, _WARPS = 1024, 4, 32
_CHUNK = 4096


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniforms: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    if rows is None:
        rows = torch.arange(len(uniforms), dtype=torch.int32, device=logits.device)
    tokens = torch.empty(len(rows), dtype=torch.int32, device=logits.device)
    if not len(rows):
        return tokens
    vocabulary = logits.shape[1]
    lanes = min(_LANES, next_power_of_2(vocabulary))
    _sample_kernel[(len(rows),)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        uniforms,
        rows,
        tokens,
        logits.stride(0),
        VOCABULARY=vocabulary,
        LANES=lanes,
        PARTS=_PARTS,
        CHUNK=min(_CHUNK, next_power_of_2(vocabulary)),
        num_warps=max(1, lanes * _WARPS // _LANES),
        enable_fp_fusion=True,
    )
    return tokens


# A program reads one number of each of these, which may be parts of larger tensors: another alignment must not make a
# step wait for the compilation of another version.
_PARAMETERS = ("temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "uniforms_ptr", "rows_ptr", "tokens_ptr")


@triton.jit(do_not_specialize=["logits_stride"], do_not_specialize_on_alignment=_PARAMETERS)
def _sample_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniforms_ptr,
    rows_ptr,
    tokens_ptr,
    logits_stride,
    VOCABULARY: tl.constexpr,
    LANES: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    sample = tl.program_id(0)
    row_ptr = logits_ptr + tl.load(rows_ptr + sample).to(tl.int64) * logits_stride
    temperature = tl.load(temperature_ptr + sample)
    largest, first_largest = _largest(row_ptr, VOCABULARY, LANES, PARTS)
    if largest == float("-inf"):
        tl.store(tokens_ptr + sample, -1)
    elif (temperature == 0) | (largest == float("inf")):  # infinite logits have no weights
        tl.store(tokens_ptr + sample, first_largest)
    else:
        top_k = tl.load(top_k_ptr + sample)
        top_p = tl.load(top_p_ptr + sample)
        min_p = tl.load(min_p_ptr + sample)
        # Keep the logits above `cut`, and the first `num_equal` by id of those equal to it.
        cut, num_alive, total = _alive(row_ptr, largest, temperature, min_p, VOCABULARY, LANES, PARTS)
        num_equal = num_alive
        if (top_k > 0) & (top_k < num_alive):
            cut = _cut(row_ptr, cut, largest, top_k, temperature, largest, False, VOCABULARY, LANES, PARTS)
            num_above, total, num_equal = _above(row_ptr, cut, largest, temperature, VOCABULARY, LANES, PARTS)
            num_equal = top_k - num_above
            total += num_equal * tl.exp((cut - largest) / temperature)
        if top_p < 1:
            wanted = total * top_p
            k_cut, k_equal = cut, num_equal
            cut = _cut(row_ptr, cut, largest, wanted, temperature, largest, True, VOCABULARY, LANES, PARTS)
            num_above, total, num_equal = _above(row_ptr, cut, largest, temperature, VOCABULARY, LANES, PARTS)
            weight = tl.exp((cut - largest) / temperature)
            needed = tl.ceil(tl.minimum((wanted - total) / weight, num_equal.to(tl.float32))).to(tl.int32)
            num_equal = tl.minimum(tl.maximum(needed, 1), tl.where(cut > k_cut, num_equal, k_equal))
            total += num_equal * weight
        target = tl.load(uniforms_ptr + sample).to(tl.float64) * total
        token = _invert(row_ptr, cut, num_equal, target, largest, temperature, VOCABULARY, CHUNK)
        tl.store(tokens_ptr + sample, token)


@triton.jit
def _load(row_ptr, tokens, VOCABULARY: tl.constexpr):
    """Logits in float32, which is exact for every dtype; minus infinity past the row's end."""
    return tl.load(row_ptr + tokens, mask=tokens < VOCABULARY, other=float("-inf")).to(tl.float32)


@triton.jit
def _largest(row_ptr, VOCABULARY: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr):
    """The largest logit and its first id; minus infinity if all are NaNs."""
    lanes = tl.arange(0, LANES)
    best = tl.full([LANES], float("-inf"), dtype=tl.float32)
    ids = tl.full([LANES], VOCABULARY, dtype=tl.int32)
    for start in range(0, VOCABULARY, LANES * PARTS):
        for part in tl.static_range(PARTS):
            tokens = start + part * LANES + lanes
            logits = _load(row_ptr, tokens, VOCABULARY)
            better = logits > best
            best = tl.where(better, logits, best)
            ids = tl.where(better, tokens, ids)
    largest = tl.max(best, axis=0)
    return largest, tl.min(tl.where(best == largest, ids, VOCABULARY), axis=0)


@triton.jit
def _alive(row_ptr, largest, temperature, min_p, VOCABULARY: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr):
    """The smallest, the number, and the sum of weights of the logits whose weight is not zero and not below min-p.

    Weights are relative to the largest. They rise with the logits, so all logits from the smallest one on count.
    """
    lanes = tl.arange(0, LANES)
    smallest = tl.full([LANES], float("inf"), dtype=tl.float32)
    counts = tl.zeros([LANES], dtype=tl.int32)
    sums = tl.zeros([LANES], dtype=tl.float32)
    for start in range(0, VOCABULARY, LANES * PARTS):
        for part in tl.static_range(PARTS):
            tokens = start + part * LANES + lanes
            logits = _load(row_ptr, tokens, VOCABULARY)
            weights = tl.exp((logits - largest) / temperature)
            alive = (weights > 0) & (weights >= min_p)
            smallest = tl.where(alive & (logits < smallest), logits, smallest)
            counts += alive.to(tl.int32)
            sums += tl.where(alive, weights, 0.0)
    return tl.min(smallest, axis=0), tl.sum(counts, axis=0), tl.sum(sums, axis=0)


@triton.jit
def _above(row_ptr, cut, largest, temperature, VOCABULARY: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr):
    """The number of logits above `cut`, the sum of their weights, and the number of logits equal to it."""
    lanes = tl.arange(0, LANES)
    counts = tl.zeros([LANES], dtype=tl.int32)
    equal = tl.zeros([LANES], dtype=tl.int32)
    sums = tl.zeros([LANES], dtype=tl.float32)
    for start in range(0, VOCABULARY, LANES * PARTS):
        for part in tl.static_range(PARTS):
            tokens = start + part * LANES + lanes
            logits = _load(row_ptr, tokens, VOCABULARY)
            counts += (logits > cut).to(tl.int32)
            equal += (logits == cut).to(tl.int32)
            sums += tl.where(logits > cut, tl.exp((logits - largest) / temperature), 0.0)
    return tl.sum(counts, axis=0), tl.sum(sums, axis=0), tl.sum(equal, axis=0)


@triton.jit
def _cut(
    row_ptr,
    low,
    high,
    wanted,
    temperature,
    largest,
    BY_SUM: tl.constexpr,
    VOCABULARY: tl.constexpr,
    LANES: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The smallest logit of the row, from `low` to `high`, with less than `wanted` above it; `high` is such a logit.

    `wanted` is a number of logits, or with BY_SUM a sum of weights. A pass measures at four pivots, of which the first
    is the smallest logit that may be the answer, and finds the smallest and the largest logit within the bounds.
    """
    lanes = tl.arange(0, LANES)
    floor = low  # Logits below do not count.
    below = low - low + float("-inf")  # The answer is above this.
    while low < high:
        step = (high - low) * 0.25
        pivot_1, pivot_2, pivot_3 = low + step, low + step * 2, low + step * 3
        measure_0 = tl.zeros([LANES], dtype=tl.float32)
        measure_1 = tl.zeros([LANES], dtype=tl.float32)
        measure_2 = tl.zeros([LANES], dtype=tl.float32)
        measure_3 = tl.zeros([LANES], dtype=tl.float32)
        smallest = tl.full([LANES], float("inf"), dtype=tl.float32)
        highest = tl.full([LANES], float("-inf"), dtype=tl.float32)
        for start in range(0, VOCABULARY, LANES * PARTS):
            for part in tl.static_range(PARTS):
                tokens = start + part * LANES + lanes
                logits = _load(row_ptr, tokens, VOCABULARY)
                amounts = tl.exp((logits - largest) / temperature) if BY_SUM else 1.0
                measure_0 += tl.where(logits > low, amounts, 0.0)
                measure_1 += tl.where(logits > pivot_1, amounts, 0.0)
                measure_2 += tl.where(logits > pivot_2, amounts, 0.0)
                measure_3 += tl.where(logits > pivot_3, amounts, 0.0)
                inside = (logits > below) & (logits >= floor) & (logits <= high)
                smallest = tl.where(inside & (logits < smallest), logits, smallest)
                highest = tl.where(inside & (logits > highest), logits, highest)
        least = tl.min(smallest, axis=0)
        high = tl.max(highest, axis=0)
        # Measures fall from pivot to pivot: the answer is above the last pivot with at least `wanted` above it.
        if tl.sum(measure_3, axis=0) >= wanted:
            below = pivot_3
        elif tl.sum(measure_2, axis=0) >= wanted:
            below = pivot_2
            high = tl.minimum(high, pivot_3)
        elif tl.sum(measure_1, axis=0) >= wanted:
            below = pivot_1
            high = tl.minimum(high, pivot_2)
        elif tl.sum(measure_0, axis=0) >= wanted:
            below = low
            high = tl.minimum(high, pivot_1)
        else:
            high = tl.minimum(high, low)
        low = tl.minimum(tl.maximum(below, least), high)
    return high


@triton.jit
def _invert(row_ptr, cut, num_equal, target, largest, temperature, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr):
    """The first kept token whose cumulative weight exceeds `target`, or the last kept one."""
    within = tl.arange(0, CHUNK)
    start = 0
    found = -1
    last_kept = 0
    before = target - target
    while (found < 0) & (start < VOCABULARY):
        tokens = start + within
        logits = _load(row_ptr, tokens, VOCABULARY)
        equal = (logits == cut).to(tl.int32)
        num_equal_here = tl.sum(equal, axis=0)
        ranks = equal * 0
        if (num_equal > 0) & (num_equal < num_equal_here):
            ranks = tl.cumsum(equal, axis=0) - equal
        kept = (logits > cut) | ((equal > 0) & (ranks < num_equal))
        num_equal -= num_equal_here
        weights = tl.where(kept, tl.exp((logits - largest) / temperature), 0.0)
        last_here = tl.max(tl.where(kept, tokens, -1), axis=0)
        last_kept = tl.maximum(last_kept, last_here)
        after = before + tl.sum(weights, axis=0)
        if after > target:
            sums = before + tl.cumsum(weights, axis=0)
            # Sums in another order may end below `target`: then take the last kept token of this chunk.
            found = tl.min(tl.where(kept & (sums > target), tokens, last_here), axis=0)
            found = tl.where(last_here < 0, -1, found)
        before = after
        start += CHUNK
    return tl.where(found < 0, last_kept, found)
