"""The gated delta rule on GPUs, token by token or in chunks.

Token by token, a program has some columns of a head's state in registers and adds one token after the other. A result
then depends neither on how a sequence is cut into rows nor on other rows. Decode steps take this, and all steps in
float32, before Ampere and with `batch_invariant`; others go in chunks (`delta_chunks.py`).
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.recurrences.delta_chunks import compute_in_chunks
from pyllm_kernels.gpu.recurrences.delta_heads import DeltaShape, inverse_length, key_head, log_factor
from pyllm_kernels.gpu.recurrences.state_tasks import row_tensors
from pyllm_kernels.gpu.recurrences.state_tile import goes_in_chunks
from pyllm_kernels.integers import ceil_div
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.metadata import StateRows

_NUMBERS = 2048  # of a state, in the registers of one warp, which reduces over keys by itself


def gated_delta_rule(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    decay_scale: Tensor,
    decay_bias: Tensor,
    rows: StateRows,
    states: Tensor,
    num_key_heads: int,
    is_tiled: bool = False,
    *,
    batch_invariant: bool = False,
    card: Card | None = None,
) -> Tensor:
    _, value_heads, key_dim, value_dim = states.shape
    num_rows = rows.sources.shape[0]
    out = qkv.new_empty((qkv.shape[0], value_heads * value_dim))
    shape = DeltaShape(num_key_heads, value_heads, key_dim, value_dim, decay.shape[1] != value_heads, is_tiled)
    inputs = qkv, decay, beta, decay_scale, decay_bias
    strides = qkv.stride(0), decay.stride(0), beta.stride(0)
    if not batch_invariant and goes_in_chunks(qkv, num_rows, card):
        compute_in_chunks(shape, inputs, strides, rows, states, out)
        return out
    launch, block = _launcher(shape)
    grid = num_rows, value_heads, ceil_div(value_dim, block)
    launch(grid, (*inputs, *row_tensors(rows), states, out), (num_rows, *strides))
    return out


@functools.cache
def _launcher(shape: DeltaShape) -> tuple[Launcher, int]:
    """The launcher, and the columns of a program."""
    block = shape.block_v(_NUMBERS)
    return Launcher(_delta_kernel, shape.constants() | {"BLOCK_V": block, "num_warps": 1}), block


@triton.jit(do_not_specialize=["num_rows"])
def _delta_kernel(
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
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0)
    if tl.load(firsts_ptr + row) != row:
        return
    head = tl.program_id(1)
    keys = tl.arange(0, BLOCK_K)
    values = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_key, is_value = keys < KEY_DIM, values < VALUE_DIM
    mask = is_key[:, None] & is_value[None, :]
    cells = head * (KEY_DIM * VALUE_DIM) + keys[:, None] * VALUE_DIM + values[None, :]
    scale = tl.load(scale_ptr + head)
    if MANY:
        decays, of_decay = head * KEY_DIM + keys, is_key
    else:
        decays, of_decay = head + keys * 0, keys >= 0
    bias = tl.load(bias_ptr + decays, mask=of_decay, other=0.0)
    queries = key_head(head, KEY_HEADS, VALUE_HEADS, TILED) * KEY_DIM + keys
    while row < num_rows:
        source, destination = tl.load(sources_ptr + row), tl.load(destinations_ptr + row)
        state = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
        if source >= 0:
            before = states_ptr + source.to(tl.int64) * (VALUE_HEADS * KEY_DIM * VALUE_DIM) + cells
            state = tl.load(before, mask=mask, other=0.0)
        start, end = tl.load(query_starts_ptr + row), tl.load(query_starts_ptr + row + 1)
        for token in range(start.to(tl.int64), end.to(tl.int64)):
            inputs = qkv_ptr + token * qkv_stride
            query = tl.load(inputs + queries, mask=is_key, other=0.0).to(tl.float32)
            key = tl.load(inputs + KEY_HEADS * KEY_DIM + queries, mask=is_key, other=0.0).to(tl.float32)
            value_ptr = inputs + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM
            value = tl.load(value_ptr + values, mask=is_value, other=0.0).to(tl.float32)
            decay = tl.load(decay_ptr + token * decay_stride + decays, mask=of_decay, other=0.0)
            share = tl.sigmoid(tl.load(beta_ptr + token * beta_stride + head).to(tl.float32))
            query *= inverse_length(query, 0) * (KEY_DIM**-0.5)
            key *= inverse_length(key, 0)
            state *= tl.exp(log_factor(decay, bias, scale))[:, None]
            learnt = (value - tl.sum(key[:, None] * state, axis=0)) * share
            state += key[:, None] * learnt[None, :]
            output = tl.sum(query[:, None] * state, axis=0)
            outputs = out_ptr + token * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM + values
            tl.store(outputs, output.to(out_ptr.dtype.element_ty), mask=is_value)
        if destination >= 0:
            after = states_ptr + destination.to(tl.int64) * (VALUE_HEADS * KEY_DIM * VALUE_DIM) + cells
            tl.store(after, state, mask=mask)
        tl.debug_barrier()  # The next row may read it.
        row = tl.load(following_ptr + row)
