"""Norms of groups of features with a gate: one program handles one group of a row, in one piece."""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.integers import next_power_of_2
from pyllm_kernels.launcher import Constant, Launcher


def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, epsilon: float, group_size: int, gate_first: bool, function: str = "silu"
) -> Tensor:
    tokens, features = x.shape
    normed = x.new_empty((tokens, features))
    launch = _launcher(features, group_size, weight.shape[0] == features, gate_first, function)
    numbers = x.stride(0), gate.stride(0), epsilon
    launch((tokens, features // group_size, 1), (x, gate, weight, normed), numbers)
    return normed


@functools.cache
def _launcher(features: int, group_size: int, of_all: bool, gate_first: bool, function: str) -> Launcher:
    """The launcher; `of_all`: each group has its own weight."""
    block = next_power_of_2(group_size)
    constants: dict[str, Constant] = {
        "GATE_FIRST": gate_first,
        "FUNCTION": function,
        "OF_ALL": of_all,
        "FEATURES": features,
        "SIZE": group_size,
        "BLOCK": block,
        "num_warps": min(max(block // 512, 1), 16),
        "enable_fp_fusion": True,
    }
    return Launcher(_gated_norm_kernel, constants)


@triton.jit
def _gated_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    normed_ptr,
    x_stride,
    gate_stride,
    epsilon,
    GATE_FIRST: tl.constexpr,
    FUNCTION: tl.constexpr,
    OF_ALL: tl.constexpr,
    FEATURES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    places = tl.arange(0, BLOCK)
    mask = places < SIZE
    columns = group * SIZE + places
    x = tl.load(x_ptr + token * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * gate_stride + columns, mask=mask, other=0.0).to(tl.float32)
    weights = columns if OF_ALL else places
    weight = tl.load(weight_ptr + weights, mask=mask, other=0.0).to(tl.float32)
    factor = tl.sigmoid(gate)
    if FUNCTION == "silu":
        factor *= gate
    else:
        tl.static_assert(FUNCTION == "sigmoid")
    if GATE_FIRST:
        x *= factor
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + epsilon) * weight
    if not GATE_FIRST:
        normed *= factor
    tl.store(normed_ptr + token * FEATURES + columns, normed.to(normed_ptr.dtype.element_ty), mask=mask)
