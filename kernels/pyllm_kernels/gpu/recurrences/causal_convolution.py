"""Causal convolutions along sequences: a program computes some channels of a row, a tile of tokens at a time.

Each number is computed alone, from inputs in the order of the taps, so a result depends neither on the tile nor on how
a sequence is cut into rows.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.gpu.recurrences.state_tasks import row_tensors
from pyllm_kernels.integers import ceil_div, next_power_of_2
from pyllm_kernels.launcher import Launcher
from pyllm_kernels.metadata import StateRows

_NUMBERS = 1024  # of a tile
_TOKENS = 16


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, rows: StateRows, states: Tensor) -> Tensor:
    return _convolve(x, weight, bias, rows, states, x.new_empty(x.shape), gated=False)


def gated_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, rows: StateRows, states: Tensor) -> Tensor:
    return _convolve(x, weight, bias, rows, states, x.new_empty((x.shape[0], weight.shape[0])), gated=True)


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: StateRows, states: Tensor, out: Tensor, *, gated: bool
) -> Tensor:
    channels, width = weight.shape
    num_rows = rows.sources.shape[0]
    launch, block = _launcher(channels, width, bias is not None, gated, x.shape[0] == num_rows)
    tensors = x, weight, weight if bias is None else bias, *row_tensors(rows), states, out
    launch((num_rows, ceil_div(channels, block), 1), tensors, (num_rows, x.stride(0)))
    return out


@functools.cache
def _launcher(channels: int, width: int, has_bias: bool, gated: bool, decodes: bool) -> tuple[Launcher, int]:
    """The launcher, and the channels of a program. `decodes`: no row has several tokens, unless another has none."""
    tokens = 1 if decodes else _TOKENS
    block = min(next_power_of_2(channels), _NUMBERS // tokens)
    constants = {
        "HAS_BIAS": has_bias,
        "GATED": gated,
        "CHANNELS": channels,
        "WIDTH": width,
        "TOKENS": tokens,
        "BLOCK": block,
        "BLOCK_WIDTH": next_power_of_2(width - 1),
        "num_warps": 4,
        "enable_fp_fusion": True,
    }
    return Launcher(_convolution_kernel, constants), block


@triton.jit(do_not_specialize=["num_rows"])
def _convolution_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    query_starts_ptr,
    sources_ptr,
    destinations_ptr,
    firsts_ptr,
    following_ptr,
    states_ptr,
    out_ptr,
    num_rows,
    x_stride,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    row = tl.program_id(0)
    if tl.load(firsts_ptr + row) != row:
        return
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    are_there = channels < CHANNELS
    bias = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + channels, mask=are_there, other=0.0)
    while row < num_rows:
        start, end = tl.load(query_starts_ptr + row), tl.load(query_starts_ptr + row + 1)
        source, destination = tl.load(sources_ptr + row), tl.load(destinations_ptr + row)
        state_ptr = states_ptr + source.to(tl.int64) * ((WIDTH - 1) * CHANNELS)
        for first in range(start, end, TOKENS):
            tokens = first + tl.arange(0, TOKENS)
            mask = (tokens < end)[:, None] & are_there[None, :]
            total = tl.zeros([TOKENS, BLOCK], dtype=tl.float32) + bias[None, :]
            for tap in tl.static_range(WIDTH):
                places = tokens - (WIDTH - 1 - tap)
                numbers = _inputs(
                    x_ptr, state_ptr, places, channels, mask, start, source, x_stride, GATED, CHANNELS, WIDTH
                )
                weight = tl.load(weight_ptr + channels * WIDTH + tap, mask=are_there, other=0.0)
                total += numbers * weight[None, :]
            if GATED:
                gate = x_ptr + tokens.to(tl.int64)[:, None] * x_stride + CHANNELS + channels[None, :]
                total *= tl.load(gate, mask=mask, other=0.0).to(tl.float32)
            else:
                total *= tl.sigmoid(total)
            outputs = out_ptr + tokens.to(tl.int64)[:, None] * CHANNELS + channels[None, :]
            tl.store(outputs, total.to(out_ptr.dtype.element_ty), mask=mask)
        kept = tl.arange(0, BLOCK_WIDTH)
        mask = (kept < WIDTH - 1)[:, None] & are_there[None, :]
        places = end - (WIDTH - 1) + kept
        last = _inputs(x_ptr, state_ptr, places, channels, mask, start, source, x_stride, GATED, CHANNELS, WIDTH)
        tl.debug_barrier()  # All have read the state, which may be the same.
        cells = states_ptr + destination.to(tl.int64) * ((WIDTH - 1) * CHANNELS)
        cells += kept[:, None] * CHANNELS + channels[None, :]
        if destination >= 0:
            tl.store(cells, last, mask=mask)
        tl.debug_barrier()  # The next row may read it.
        row = tl.load(following_ptr + row)


@triton.jit
def _inputs(
    x_ptr,
    state_ptr,
    places,  # [tokens], of a row's inputs; those before `start` are in the state
    channels,
    mask,
    start,
    source,
    x_stride,
    GATED: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    is_new = mask & (places >= start)[:, None]
    pointers = x_ptr + places.to(tl.int64)[:, None] * x_stride + channels[None, :]
    numbers = tl.load(pointers, mask=is_new, other=0.0).to(tl.float32)
    if GATED:
        numbers *= tl.load(pointers + 2 * CHANNELS, mask=is_new, other=0.0).to(tl.float32)
    if source >= 0:
        is_old = mask & (places < start)[:, None]
        cells = state_ptr + (places - start + WIDTH - 1)[:, None] * CHANNELS + channels[None, :]
        numbers = tl.where(is_old, tl.load(cells, mask=is_old, other=0.0), numbers)
    return numbers
