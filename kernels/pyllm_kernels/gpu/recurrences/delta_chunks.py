"""The gated delta rule in chunks for tensor cores (arXiv 2406.06484, 2412.06464; many decays: 2510.26692).

Within a chunk, what its tokens learn solves a triangular system: with S the state before the chunk and b the sums of
logarithms of factors up to each token,

    learnt = (I + A)^-1 diag(beta) (v - (k exp(b)) S)      A[i, j] = beta[i] (k[i] exp(b[i] - b[j])) k[j], j < i
    output = (q exp(b)) S + P learnt                       P[i, j] = (q[i] exp(b[i] - b[j])) k[j], j <= i
    S'     = exp(b[last]) S + (k exp(b[last] - b))^T learnt

The first kernel makes both matrices of all chunks side by side; the second goes through a row's chunks. Exponents are
never positive, so nothing overflows. Chunks are counted from a row's first token in the step: how a sequence is cut
into rows changes the last bits of a result, other rows do not. Products are of float32, of which tensor cores take 11
bits of each factor (tf32).
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.gpu.recurrences.delta_heads import DeltaShape, inverse_length, key_head, log_factor
from pyllm_kernels.gpu.recurrences.state_tasks import row_tensors
from pyllm_kernels.gpu.recurrences.state_tile import CHUNK, LEAST_LOG_FACTOR, causal_factors
from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.metadata import StateRows

_NUMBERS = 4096  # of a state, in the registers of a program
_OPTIONS = {"num_warps": 8, "num_stages": 1}  # A chunk fills the registers; more of them, or larger ones, spill.


def compute_in_chunks(
    shape: DeltaShape,
    inputs: tuple[Tensor, ...],
    strides: tuple[int, int, int],
    rows: StateRows,
    states: Tensor,
    out: Tensor,
) -> None:
    """`inputs` are qkv, decay, beta, decay_scale and decay_bias, the first three with these strides of tokens."""
    num_rows, heads = rows.sources.shape[0], shape.value_heads
    # Row i's chunks begin at `query_starts[i] // CHUNK + i`, which leaves each row room for its last, partial chunk.
    num_chunks = out.shape[0] // CHUNK + num_rows
    matrices = torch.empty((num_chunks, heads, 2, CHUNK, CHUNK), dtype=torch.float32, device=out.device)
    numbers = num_rows, *strides
    launch = _matrices_launcher(shape, next_power_of_2(num_rows))
    launch((num_chunks, heads, 1), (*inputs, rows.query_starts, matrices), numbers)
    launch, block = _chunks_launcher(shape)
    tensors = *inputs, *row_tensors(rows), matrices, states, out
    launch((num_rows, heads, ceil_div(shape.value_dim, block)), tensors, numbers)


@functools.cache
def _matrices_launcher(shape: DeltaShape, block_rows: int) -> Launcher:
    constants = shape.constants() | {"TOKENS": CHUNK, "BLOCK_ROWS": block_rows, **_OPTIONS}
    return Launcher(_matrices_kernel, constants)


@functools.cache
def _chunks_launcher(shape: DeltaShape) -> tuple[Launcher, int]:
    """The launcher, and the columns of a program."""
    block = shape.block_v(_NUMBERS)
    constants = shape.constants() | {"TOKENS": CHUNK, "BLOCK_V": block, **_OPTIONS}
    return Launcher(_chunks_kernel, constants), block


@triton.jit(do_not_specialize=["num_rows"])
def _matrices_kernel(
    qkv_ptr,
    decay_ptr,
    beta_ptr,
    scale_ptr,
    bias_ptr,
    query_starts_ptr,
    matrices_ptr,
    num_rows,
    qkv_stride,
    decay_stride,
    beta_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    MANY: tl.constexpr,
    TILED: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    chunk, head = tl.program_id(0), tl.program_id(1)
    rows = tl.arange(0, BLOCK_ROWS)
    begins = tl.load(query_starts_ptr + rows, mask=rows < num_rows, other=0) // TOKENS + rows
    row = tl.sum(((begins <= chunk) & (rows < num_rows)).to(tl.int32), axis=0) - 1
    start, end = tl.load(query_starts_ptr + row), tl.load(query_starts_ptr + row + 1)
    first = start + (chunk - start // TOKENS - row) * TOKENS
    if first >= end:
        return
    query, key, sums = _chunk(
        qkv_ptr, decay_ptr, scale_ptr, bias_ptr, first, end, head, qkv_stride, decay_stride,
        KEY_HEADS, VALUE_HEADS, KEY_DIM, MANY, TILED, TOKENS, BLOCK_K,
    )  # fmt: skip
    places = tl.arange(0, TOKENS)
    if MANY:
        keys, queries = _decayed_products(query, key, sums, tl.minimum(end - first, TOKENS), TOKENS)
    else:
        factors = causal_factors(sums, TOKENS)
        keys = tl.dot(key, tl.trans(key), input_precision="tf32") * factors
        queries = tl.dot(query, tl.trans(key), input_precision="tf32") * factors
    tokens = first + places
    beta = tl.load(beta_ptr + tokens.to(tl.int64) * beta_stride + head, mask=tokens < end, other=0.0)
    shares = tl.sigmoid(beta.to(tl.float32))
    lower = tl.where(places[:, None] > places[None, :], keys * shares[:, None], 0.0)
    solved = _inverse(lower, TOKENS) * shares[None, :]
    cells = places[:, None] * TOKENS + places[None, :]
    out_ptr = matrices_ptr + (chunk.to(tl.int64) * VALUE_HEADS + head) * (2 * TOKENS * TOKENS)
    tl.store(out_ptr + cells, solved)
    tl.store(out_ptr + TOKENS * TOKENS + cells, queries)


@triton.jit(do_not_specialize=["num_rows"])
def _chunks_kernel(
    qkv_ptr,
    decay_ptr,
    beta_ptr,
    scale_ptr,
    bias_ptr,
    query_starts_ptr,
    sources_ptr,
    destinations_ptr,
    firsts_ptr,
    following_ptr,
    matrices_ptr,
    states_ptr,
    out_ptr,
    num_rows,
    qkv_stride,
    decay_stride,
    beta_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    MANY: tl.constexpr,
    TILED: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0)
    if tl.load(firsts_ptr + row) != row:
        return
    head = tl.program_id(1)
    keys, places = tl.arange(0, BLOCK_K), tl.arange(0, TOKENS)
    values = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_value = values < VALUE_DIM
    mask = (keys < KEY_DIM)[:, None] & is_value[None, :]
    cells = head * (KEY_DIM * VALUE_DIM) + keys[:, None] * VALUE_DIM + values[None, :]
    value_ptr = qkv_ptr + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + values[None, :]
    while row < num_rows:
        source, destination = tl.load(sources_ptr + row), tl.load(destinations_ptr + row)
        start, end = tl.load(query_starts_ptr + row), tl.load(query_starts_ptr + row + 1)
        state = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
        if source >= 0:
            before = states_ptr + source.to(tl.int64) * (VALUE_HEADS * KEY_DIM * VALUE_DIM) + cells
            state = tl.load(before, mask=mask, other=0.0)
        chunk = (start // TOKENS + row).to(tl.int64)
        for first in range(start, end, TOKENS):
            query, key, sums = _chunk(
                qkv_ptr, decay_ptr, scale_ptr, bias_ptr, first, end, head, qkv_stride, decay_stride,
                KEY_HEADS, VALUE_HEADS, KEY_DIM, MANY, TILED, TOKENS, BLOCK_K,
            )  # fmt: skip
            if not MANY:
                sums = sums[:, None]
            total = tl.min(sums, axis=0)  # Sums fall, and stay after the row's last token.
            matrix_ptr = matrices_ptr + (chunk * VALUE_HEADS + head) * (2 * TOKENS * TOKENS)
            matrix_ptr += places[:, None] * TOKENS + places[None, :]
            tokens = (first + places).to(tl.int64)[:, None]
            is_there = (first + places < end)[:, None] & is_value[None, :]
            value = tl.load(value_ptr + tokens * qkv_stride, mask=is_there, other=0.0).to(tl.float32)
            kept = tl.exp(sums)
            value -= tl.dot(key * kept, state, input_precision="tf32")
            learnt = tl.dot(tl.load(matrix_ptr), value, input_precision="tf32")  # [TOKENS, BLOCK_V]
            output = tl.dot(query * kept, state, input_precision="tf32")
            output = tl.dot(tl.load(matrix_ptr + TOKENS * TOKENS), learnt, output, input_precision="tf32")
            outputs = out_ptr + tokens * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM + values[None, :]
            tl.store(outputs, output.to(out_ptr.dtype.element_ty), mask=is_there)
            left = key * tl.exp(total[None, :] - sums)
            state *= tl.exp(total)[:, None]
            state = tl.dot(tl.trans(left), learnt, state, input_precision="tf32")
            chunk += 1
        if destination >= 0:
            after = states_ptr + destination.to(tl.int64) * (VALUE_HEADS * KEY_DIM * VALUE_DIM) + cells
            tl.store(after, state, mask=mask)
        tl.debug_barrier()  # The next row may read it.
        row = tl.load(following_ptr + row)


@triton.jit
def _chunk(
    qkv_ptr,
    decay_ptr,
    scale_ptr,
    bias_ptr,
    first,
    end,
    head,
    qkv_stride,
    decay_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    MANY: tl.constexpr,
    TILED: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Queries and keys [TOKENS, BLOCK_K], and sums of logarithms of factors, of that shape or [TOKENS].

    After `end` all are zeros but the sums, which stay.
    """
    keys = tl.arange(0, BLOCK_K)
    places = first + tl.arange(0, TOKENS)
    tokens = places.to(tl.int64)
    is_there, is_key = places < end, keys < KEY_DIM
    mask = is_there[:, None] & is_key[None, :]
    pointers = qkv_ptr + tokens[:, None] * qkv_stride
    pointers += key_head(head, KEY_HEADS, VALUE_HEADS, TILED) * KEY_DIM + keys[None, :]
    query = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    key = tl.load(pointers + KEY_HEADS * KEY_DIM, mask=mask, other=0.0).to(tl.float32)
    query *= inverse_length(query, 1)[:, None] * (KEY_DIM**-0.5)
    key *= inverse_length(key, 1)[:, None]
    scale = tl.load(scale_ptr + head)
    if MANY:
        decays = head * KEY_DIM + keys
        decay = tl.load(decay_ptr + tokens[:, None] * decay_stride + decays[None, :], mask=mask, other=0.0)
        bias = tl.load(bias_ptr + decays, mask=is_key, other=0.0)
        factors = tl.where(mask, log_factor(decay, bias[None, :], scale), 0.0)
    else:
        decay = tl.load(decay_ptr + tokens * decay_stride + head, mask=is_there, other=0.0)
        factors = tl.where(is_there, log_factor(decay, tl.load(bias_ptr + head), scale), 0.0)
    return query, key, tl.cumsum(tl.maximum(factors, LEAST_LOG_FACTOR), axis=0)


@triton.jit
def _decayed_products(query, key, sums, num_tokens, TOKENS: tl.constexpr):
    """The products of keys, and of queries, with the keys of tokens before, each dimension with its own factors."""
    places = tl.arange(0, TOKENS)
    keys, queries = tl.zeros([TOKENS, TOKENS], dtype=tl.float32), tl.zeros([TOKENS, TOKENS], dtype=tl.float32)
    for place in range(num_tokens):
        is_place = places == place
        # A sum of one number and zeros; the sums are not positive, and neither are differences that count.
        own = tl.sum(tl.where(is_place[:, None], sums, 0.0), axis=0)
        other = tl.sum(tl.where(is_place[:, None], key, 0.0), axis=0)
        counts = places >= place
        factors = tl.where(counts[:, None], tl.exp(tl.where(counts[:, None], sums - own[None, :], 0.0)), 0.0)
        factors *= other[None, :]
        keys = tl.where(is_place[None, :], tl.sum(key * factors, axis=1)[:, None], keys)
        queries = tl.where(is_place[None, :], tl.sum(query * factors, axis=1)[:, None], queries)
    return keys, queries


@triton.jit
def _inverse(lower, TOKENS: tl.constexpr):
    """The inverse of `identity + lower`, of blocks of twice the size from those before; `lower` is 0 from the diagonal.

    Of blocks P above, Q below and C to the left of Q, the inverse has -Q^-1 C P^-1 in place of C.
    """
    places = tl.arange(0, TOKENS)
    inverse = (places[:, None] == places[None, :]).to(tl.float32)
    size = 1
    while size < TOKENS:
        blocks = places // size
        is_left = (blocks[:, None] == blocks[None, :] + 1) & (blocks[:, None] % 2 == 1)
        left = tl.where(is_left, lower, 0.0)
        left = tl.dot(inverse, left, input_precision="ieee")
        inverse -= tl.dot(left, inverse, input_precision="ieee")
        size *= 2
    return inverse
