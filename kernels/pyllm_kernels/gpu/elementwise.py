"""Elementwise ops on rows: activations, with a gate or without, a bias, a factor and a cap, a gate, a cast."""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor, cat

from pyllm_kernels.integers import ceil_div
from pyllm_kernels.launcher import Constant, Launcher
from pyllm_kernels.ops.activation import LimitedSwiglu, Xielu

_BLOCK = 1024


def activation(x: Tensor, kind: str | Xielu | LimitedSwiglu, gated: bool = True, up: Tensor | None = None) -> Tensor:
    x = x if up is None else cat((x, up), -1)
    tokens, width = x.shape
    size = width // 2 if gated else width
    output = x.new_empty((tokens, size))
    name, learned = kind, (0.0,) * 4
    if isinstance(kind, Xielu):
        name, learned = "xielu", (kind.positive, kind.negative, kind.beta, kind.epsilon)
    elif isinstance(kind, LimitedSwiglu):
        name, learned = "limited", (kind.limit, 0.0, 0.0, 0.0)
    launch = _activation_launcher(name, gated, size)
    launch((tokens, ceil_div(size, _BLOCK), 1), (x, output), (x.stride(0), *learned))
    return output


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    rows, size = x.shape
    _add_bias_launcher(size)((rows, ceil_div(size, _BLOCK), 1), (x, bias), (x.stride(0),))
    return x


def scale_and_cap(x: Tensor, factor: float, cap: float | None = None) -> Tensor:
    rows, size = x.shape
    numbers = x.stride(0), factor, 1.0 if cap is None else cap
    _scale_and_cap_launcher(size, cap is not None)((rows, ceil_div(size, _BLOCK), 1), (x,), numbers)
    return x


def clamp(x: Tensor, limit: float) -> Tensor:
    return x.clamp_(-limit, limit)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    return _gate(x, gate, "sigmoid")


def softplus_gate(x: Tensor, gate: Tensor) -> Tensor:
    return _gate(x, gate, "softplus")


def silu_gate(x: Tensor, gate: Tensor) -> Tensor:
    return _gate(x, gate, "silu")


def _gate(x: Tensor, gate: Tensor, function: str) -> Tensor:
    rows, size = x.shape
    launch = _gate_launcher(size, size // gate.shape[1], function)
    launch((rows, ceil_div(size, _BLOCK), 1), (x, gate), (x.stride(0), gate.stride(0)))
    return x


def widen(x: Tensor) -> Tensor:
    return x.float()


@functools.cache
def _activation_launcher(kind: str, gated: bool, size: int) -> Launcher:
    return Launcher(_activation_kernel, _row_constants(size) | {"KIND": kind, "GATED": gated})


@functools.cache
def _add_bias_launcher(size: int) -> Launcher:
    return Launcher(_add_bias_kernel, _row_constants(size))


@functools.cache
def _scale_and_cap_launcher(size: int, capped: bool) -> Launcher:
    return Launcher(_scale_and_cap_kernel, {"CAPPED": capped} | _row_constants(size))


@functools.cache
def _gate_launcher(size: int, features: int, function: str) -> Launcher:
    constants: dict[str, Constant] = {"FEATURES": features, "FUNCTION": function}
    return Launcher(_gate_kernel, constants | _row_constants(size))


def _row_constants(size: int) -> dict[str, Constant]:
    return {"SIZE": size, "BLOCK": _BLOCK, "num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _add_bias_kernel(x_ptr, bias_ptr, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    pointers = x_ptr + row * x_stride + columns
    bias = tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    total = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) + bias
    tl.store(pointers, total.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _scale_and_cap_kernel(x_ptr, x_stride, factor, cap, CAPPED: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    pointers = x_ptr + row * x_stride + columns
    scaled = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) * factor
    if CAPPED:
        scaled = cap * (2 * tl.sigmoid(tl.maximum(2 * scaled / cap, -80.0)) - 1)
    tl.store(pointers, scaled.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gate_kernel(
    x_ptr,
    gate_ptr,
    x_stride,
    gate_stride,
    FEATURES: tl.constexpr,
    FUNCTION: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    pointers = x_ptr + row * x_stride + columns
    gate = tl.load(gate_ptr + row * gate_stride + columns // FEATURES, mask=mask, other=0.0).to(tl.float32)
    if FUNCTION == "softplus":
        factor = tl.where(gate > 0, gate, 0.0) + tl.log(1 + tl.exp(-tl.abs(gate)))  # a NaN stays one by the second part
    else:
        factor = tl.sigmoid(gate)
        if FUNCTION == "silu":
            factor *= gate
    gated = tl.load(pointers, mask=mask, other=0.0).to(tl.float32) * factor
    tl.store(pointers, gated.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _activation_kernel(
    x_ptr,
    output_ptr,
    x_stride,
    positive,
    negative,
    beta,
    epsilon,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(x_ptr + token * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    up = 1.0
    if GATED:
        up = tl.load(x_ptr + token * x_stride + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    if KIND == "xielu":
        output = _xielu(gate, positive, negative, beta, epsilon) * up
    elif KIND == "limited":
        output = _limited(gate, up, positive)
    else:
        output = activate(gate, KIND) * up
    tl.store(output_ptr + token * SIZE + columns, output.to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit
def activate_gated(gate, up, KIND: tl.constexpr, CLAMP: tl.constexpr = None):
    """The gated activation in float32.

    CLAMP is the limit and alpha of a `ClampedSwiglu`, without a KIND, or the limit of a `LimitedSwiglu`, and 0.
    """
    if CLAMP is None:
        output = activate(gate, KIND) * up
    elif KIND is not None:
        output = _limited(gate, up, CLAMP[0])
    else:
        LIMIT: tl.constexpr = CLAMP[0]
        ALPHA: tl.constexpr = CLAMP[1]
        gate = tl.where(gate > LIMIT, LIMIT, gate)  # so that a NaN stays a NaN
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        output = (up + 1) * gate * tl.sigmoid(ALPHA * gate)
    return output


@triton.jit
def _limited(gate, up, limit):
    gate = activate(gate, "silu")
    gate = tl.where(gate > limit, limit, gate)  # so that a NaN stays a NaN
    return gate * tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))


@triton.jit
def _xielu(x, positive, negative, beta, epsilon):
    below = negative * (tl.exp(tl.minimum(x, epsilon)) - 1 - x)
    return tl.where(x > 0, positive * x * x, below) + beta * x


@triton.jit
def activate(x, KIND: tl.constexpr):
    """The activation in float32."""
    if KIND == "silu":
        output = x * tl.sigmoid(x)
    elif KIND == "gelu":
        output = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif KIND == "relu":
        output = tl.where(x < 0, 0.0, x)  # so that a NaN stays a NaN
    elif KIND == "relu2":
        output = tl.where(x < 0, 0.0, x * x)
    else:
        tl.static_assert(KIND == "gelu_tanh")
        # (1 + tanh(z)) / 2 is sigmoid(2 z).
        twice = 1.5957691216057308 * (x + 0.044715 * x * x * x)
        output = x * tl.sigmoid(tl.maximum(twice, -80.0))
    return output
