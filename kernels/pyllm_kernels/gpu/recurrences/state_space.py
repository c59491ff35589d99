"""The recurrences of Mamba-2 and Mamba on GPUs: token by token, and Mamba-2's also in chunks.

Token by token, a program has some rows of a state in registers and adds one token after the other. A result then
depends neither on how a sequence is cut into rows nor on other rows: Mamba takes this always, Mamba-2 in decode steps,
in float32, before Ampere and with `batch_invariant`. Otherwise Mamba-2 goes in chunks: with S the state before a chunk
and b the sums of logarithms of factors up to each token, by products for tensor cores (the state space duality of arXiv
2405.21060),

    output = (c exp(b)) S^T + P (dt x)      P[i, j] = exp(b[i] - b[j]) c[i] b[j], j <= i
    S'     = exp(b[last]) S + (dt x exp(b[last] - b))^T b

Chunks are counted from a row's first token in the step: how a sequence is cut into rows changes the last bits of a
result, other rows do not. Products are of float32, of which tensor cores take 11 bits of each factor (tf32).
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card
from pyllm_kernels.gpu.recurrences.state_tasks import row_tensors
from pyllm_kernels.gpu.recurrences.state_tile import CHUNK, LEAST_LOG_FACTOR, causal_factors, goes_in_chunks, softplus
from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Constant, Launcher
from pyllm_kernels.metadata import StateRows

_NUMBERS = 2048  # of a state, in the registers of one warp
_NUMBERS_IN_CHUNKS = 4096  # of four warps
_LEAST_TILE = 16  # of Triton's products


def state_space(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    step_bias: Tensor,
    decay_log: Tensor,
    skip: Tensor,
    rows: StateRows,
    states: Tensor,
    step_limits: tuple[float, float],
    *,
    batch_invariant: bool = False,
    card: Card | None = None,
) -> Tensor:
    _, heads, head_dim, state_size = states.shape
    num_rows, out = rows.sources.shape[0], x.new_empty(x.shape)
    shape = _Heads(heads, b.shape[1] // state_size, head_dim, state_size)
    launch, block = _heads_launcher(shape, not batch_invariant and goes_in_chunks(x, num_rows, card))
    tensors = x, b, c, step, step_bias, decay_log, skip, *row_tensors(rows), states, out
    numbers = num_rows, *(matrix.stride(0) for matrix in (x, b, c, step)), *map(float, step_limits)
    launch((num_rows, heads, ceil_div(head_dim, block)), tensors, numbers)
    return out


def selective_scan(
    x: Tensor,
    step: Tensor,
    b: Tensor,
    c: Tensor,
    step_bias: Tensor,
    decay_log: Tensor,
    skip: Tensor,
    rows: StateRows,
    states: Tensor,
) -> Tensor:
    _, channels, state_size = states.shape
    num_rows, out = rows.sources.shape[0], x.new_empty(x.shape)
    launch, block = _scan_launcher(channels, state_size)
    tensors = x, step, b, c, step_bias, decay_log, skip, *row_tensors(rows), states, out
    numbers = num_rows, *(matrix.stride(0) for matrix in (x, step, b, c))
    launch((num_rows, ceil_div(channels, block), 1), tensors, numbers)
    return out


class _Heads(NamedTuple):
    heads: int
    groups: int
    head_dim: int
    state_size: int


@functools.cache
def _heads_launcher(shape: _Heads, in_chunks: bool) -> tuple[Launcher, int]:
    """The launcher, and the rows of a state in a program."""
    least, numbers = (_LEAST_TILE, _NUMBERS_IN_CHUNKS) if in_chunks else (1, _NUMBERS)
    columns = max(next_power_of_2(shape.state_size), least)
    block = max(min(numbers // columns, next_power_of_2(shape.head_dim)), least)
    constants: dict[str, Constant] = {name.upper(): value for name, value in shape._asdict().items()}
    constants |= {"BLOCK": block, "BLOCK_STATE": columns, "enable_fp_fusion": True}
    if not in_chunks:
        return Launcher(_state_space_kernel, constants | {"num_warps": 1}), block
    chunks = {"TOKENS": CHUNK, "num_warps": 8, "num_stages": 1}
    return Launcher(_state_space_chunks_kernel, constants | chunks), block


@functools.cache
def _scan_launcher(channels: int, state_size: int) -> tuple[Launcher, int]:
    """The launcher, and the channels of a program."""
    columns = next_power_of_2(state_size)
    block = max(min(_NUMBERS // 2 // columns, next_power_of_2(channels)), 1)
    constants = {"CHANNELS": channels, "STATE_SIZE": state_size, "BLOCK": block, "BLOCK_STATE": columns}
    return Launcher(_selective_scan_kernel, constants | {"num_warps": 1, "enable_fp_fusion": True}), block


@triton.jit(do_not_specialize=["num_rows"])
def _state_space_kernel(
    x_ptr,
    b_ptr,
    c_ptr,
    step_ptr,
    bias_ptr,
    decay_ptr,
    skip_ptr,
    query_starts_ptr,
    sources_ptr,
    destinations_ptr,
    firsts_ptr,
    following_ptr,
    states_ptr,
    out_ptr,
    num_rows,
    x_stride,
    b_stride,
    c_stride,
    step_stride,
    least,
    most,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
):
    row = tl.program_id(0)
    if tl.load(firsts_ptr + row) != row:
        return
    head = tl.program_id(1)
    inputs, columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_STATE)
    is_input, is_column = inputs < HEAD_DIM, columns < STATE_SIZE
    mask = is_input[:, None] & is_column[None, :]
    cells = (head * HEAD_DIM + inputs)[:, None] * STATE_SIZE + columns[None, :]
    of_group = head // (HEADS // GROUPS) * STATE_SIZE + columns
    bias, rate, skip = _of_head(bias_ptr, decay_ptr, skip_ptr, head)
    while row < num_rows:
        source, destination = tl.load(sources_ptr + row), tl.load(destinations_ptr + row)
        state = tl.zeros([BLOCK, BLOCK_STATE], dtype=tl.float32)
        if source >= 0:
            before = states_ptr + source.to(tl.int64) * (HEADS * HEAD_DIM * STATE_SIZE) + cells
            state = tl.load(before, mask=mask, other=0.0)
        start, end = tl.load(query_starts_ptr + row), tl.load(query_starts_ptr + row + 1)
        for token in range(start.to(tl.int64), end.to(tl.int64)):
            x = tl.load(x_ptr + token * x_stride + head * HEAD_DIM + inputs, mask=is_input, other=0.0).to(tl.float32)
            b = tl.load(b_ptr + token * b_stride + of_group, mask=is_column, other=0.0).to(tl.float32)
            c = tl.load(c_ptr + token * c_stride + of_group, mask=is_column, other=0.0).to(tl.float32)
            step = softplus(tl.load(step_ptr + token * step_stride + head).to(tl.float32) + bias)
            step = tl.minimum(tl.maximum(step, least), most)
            state = state * tl.exp(rate * step) + (x * step)[:, None] * b[None, :]
            output = tl.sum(state * c[None, :], axis=1) + skip * x
            outputs = out_ptr + token * (HEADS * HEAD_DIM) + head * HEAD_DIM + inputs
            tl.store(outputs, output.to(out_ptr.dtype.element_ty), mask=is_input)
        if destination >= 0:
            after = states_ptr + destination.to(tl.int64) * (HEADS * HEAD_DIM * STATE_SIZE) + cells
            tl.store(after, state, mask=mask)
        tl.debug_barrier()  # The next row may read it.
        row = tl.load(following_ptr + row)


@triton.jit(do_not_specialize=["num_rows"])
def _state_space_chunks_kernel(
    x_ptr,
    b_ptr,
    c_ptr,
    step_ptr,
    bias_ptr,
    decay_ptr,
    skip_ptr,
    query_starts_ptr,
    sources_ptr,
    destinations_ptr,
    firsts_ptr,
    following_ptr,
    states_ptr,
    out_ptr,
    num_rows,
    x_stride,
    b_stride,
    c_stride,
    step_stride,
    least,
    most,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0)
    if tl.load(firsts_ptr + row) != row:
        return
    head = tl.program_id(1)
    inputs, columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_STATE)
    is_input, is_column = inputs < HEAD_DIM, columns < STATE_SIZE
    mask = is_input[:, None] & is_column[None, :]
    cells = (head * HEAD_DIM + inputs)[:, None] * STATE_SIZE + columns[None, :]
    of_head, of_group = head * HEAD_DIM + inputs[None, :], head // (HEADS // GROUPS) * STATE_SIZE + columns[None, :]
    bias, rate, skip = _of_head(bias_ptr, decay_ptr, skip_ptr, head)
    while row < num_rows:
        source, destination = tl.load(sources_ptr + row), tl.load(destinations_ptr + row)
        start, end = tl.load(query_starts_ptr + row), tl.load(query_starts_ptr + row + 1)
        state = tl.zeros([BLOCK, BLOCK_STATE], dtype=tl.float32)
        if source >= 0:
            before = states_ptr + source.to(tl.int64) * (HEADS * HEAD_DIM * STATE_SIZE) + cells
            state = tl.load(before, mask=mask, other=0.0)
        for first in range(start, end, TOKENS):
            places = first + tl.arange(0, TOKENS)
            is_there, tokens = places < end, places.to(tl.int64)[:, None]
            has_input, has_column = is_there[:, None] & is_input[None, :], is_there[:, None] & is_column[None, :]
            x = tl.load(x_ptr + tokens * x_stride + of_head, mask=has_input, other=0.0).to(tl.float32)
            b = tl.load(b_ptr + tokens * b_stride + of_group, mask=has_column, other=0.0).to(tl.float32)
            c = tl.load(c_ptr + tokens * c_stride + of_group, mask=has_column, other=0.0).to(tl.float32)
            step = tl.load(step_ptr + places.to(tl.int64) * step_stride + head, mask=is_there, other=0.0)
            step = tl.minimum(tl.maximum(softplus(step.to(tl.float32) + bias), least), most)
            factors = tl.where(is_there, tl.maximum(rate * step, LEAST_LOG_FACTOR), 0.0)
            sums, total = tl.cumsum(factors, axis=0), tl.sum(factors, axis=0)
            learnt = x * step[:, None]
            scores = tl.dot(c, tl.trans(b), input_precision="tf32") * causal_factors(sums, TOKENS)
            output = tl.dot(scores, learnt, skip * x, input_precision="tf32")
            output = tl.dot(c * tl.exp(sums)[:, None], tl.trans(state), output, input_precision="tf32")
            outputs = out_ptr + tokens * (HEADS * HEAD_DIM) + of_head
            tl.store(outputs, output.to(out_ptr.dtype.element_ty), mask=has_input)
            left = learnt * tl.exp(total - sums)[:, None]
            state = tl.dot(tl.trans(left), b, state * tl.exp(total), input_precision="tf32")
        if destination >= 0:
            after = states_ptr + destination.to(tl.int64) * (HEADS * HEAD_DIM * STATE_SIZE) + cells
            tl.store(after, state, mask=mask)
        tl.debug_barrier()  # The next row may read it.
        row = tl.load(following_ptr + row)


@triton.jit
def _of_head(bias_ptr, decay_ptr, skip_ptr, head):
    """The bias of steps, the rate by which logarithms fall, and the skip."""
    return tl.load(bias_ptr + head), -tl.exp(tl.load(decay_ptr + head)), tl.load(skip_ptr + head)


@triton.jit(do_not_specialize=["num_rows"])
def _selective_scan_kernel(
    x_ptr,
    step_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    decay_ptr,
    skip_ptr,
    query_starts_ptr,
    sources_ptr,
    destinations_ptr,
    firsts_ptr,
    following_ptr,
    states_ptr,
    out_ptr,
    num_rows,
    x_stride,
    step_stride,
    b_stride,
    c_stride,
    CHANNELS: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
):
    row = tl.program_id(0)
    if tl.load(firsts_ptr + row) != row:
        return
    channels, columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_STATE)
    is_channel, is_column = channels < CHANNELS, columns < STATE_SIZE
    mask = is_channel[:, None] & is_column[None, :]
    cells = channels[:, None] * STATE_SIZE + columns[None, :]
    bias = tl.load(bias_ptr + channels, mask=is_channel, other=0.0)
    skip = tl.load(skip_ptr + channels, mask=is_channel, other=0.0)
    rates = -tl.exp(tl.load(decay_ptr + cells, mask=mask, other=0.0))
    while row < num_rows:
        source, destination = tl.load(sources_ptr + row), tl.load(destinations_ptr + row)
        state = tl.zeros([BLOCK, BLOCK_STATE], dtype=tl.float32)
        if source >= 0:
            before = states_ptr + source.to(tl.int64) * (CHANNELS * STATE_SIZE) + cells
            state = tl.load(before, mask=mask, other=0.0)
        start, end = tl.load(query_starts_ptr + row), tl.load(query_starts_ptr + row + 1)
        for token in range(start.to(tl.int64), end.to(tl.int64)):
            x = tl.load(x_ptr + token * x_stride + channels, mask=is_channel, other=0.0).to(tl.float32)
            step = tl.load(step_ptr + token * step_stride + channels, mask=is_channel, other=0.0)
            step = softplus(step.to(tl.float32) + bias)
            b = tl.load(b_ptr + token * b_stride + columns, mask=is_column, other=0.0).to(tl.float32)
            c = tl.load(c_ptr + token * c_stride + columns, mask=is_column, other=0.0).to(tl.float32)
            state = state * tl.exp(rates * step[:, None]) + (x * step)[:, None] * b[None, :]
            output = tl.sum(state * c[None, :], axis=1) + skip * x
            outputs = out_ptr + token * CHANNELS + channels
            tl.store(outputs, output.to(out_ptr.dtype.element_ty), mask=is_channel)
        if destination >= 0:
            after = states_ptr + destination.to(tl.int64) * (CHANNELS * STATE_SIZE) + cells
            tl.store(after, state, mask=mask)
        tl.debug_barrier()  # The next row may read it.
        row = tl.load(following_ptr + row)
