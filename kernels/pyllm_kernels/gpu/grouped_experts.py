"""Mixture of experts on a GPU: products of each expert's tokens with its matrices, and each token's weighted sum.

A program multiplies rows of one expert, in the steps of the linear of the matrix's format: see `linear_tile.py`. As
there, except for float32, the number of rows picks one of two tiles, here the average number for an expert. Both tiles
add up features in the same steps. That this makes tokens bitwise equal across the two tiles has not been tested on a
GPU. With `batch_invariant` there is one tile, and a token's result does not depend on others. The results of a token
are added in the order of its experts, in float32, and rounded once.
"""
# Triton traces a kernel's text: its arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyllm_kernels.cards import Card, card_of
from pyllm_kernels.gpu.elementwise import activate, activate_gated
from pyllm_kernels.gpu.expert_routing import Blocks, align_block_size, choose_experts
from pyllm_kernels.gpu.linears.linear_fp8 import fp8_sums
from pyllm_kernels.gpu.linears.linear_invariant import float_sums
from pyllm_kernels.gpu.linears.linear_tile import (
    Tile,
    blocks_of_program,
    float_block_k,
    float_tile,
    has_tensor_cores,
    options_of,
)
from pyllm_kernels.gpu.linears.linear_w4a16 import w4a16_block_k, w4a16_sums
from pyllm_kernels.gpu.linears.linear_w8a8 import has_integer_dot, quantise_rows, w8a8_sums, w8a8_tile
from pyllm_kernels.gpu.linears.linear_w8a16 import w8a16_block_k, w8a16_sums
from pyllm_kernels.integers import ceil_div
from pyllm_kernels.matrix_rows import FLOAT_DTYPES
from pyllm_kernels.ops.activation import ACTIVATIONS, LimitedSwiglu
from pyllm_kernels.ops.experts import ClampedSwiglu, ExpertActivation, ExpertMatrices, Router
from pyllm_kernels.ops.packed_linear import PackedLinear
from pyllm_kernels.quantised_shapes import check_w8a8, fp8_scale_block, w4a16_group_size, w8a16_group_size
from pyllm_kernels.tensors import dtype_name

_COLUMNS_AT_ONCE = 1024
_FEATURES_UNIT = 32
_MAX_EXPERTS = 1024  # as one program has all scores of a token in registers
_FOUR_BITS = {"q4_0", "q4_1"}
_FORMATS = {*FLOAT_DTYPES, *_FOUR_BITS, "q8_0", "int8", "float8_e4m3fn"}
_MAX_PAIRS = 2**31 - 2**20  # fits into int32, with room for indices past the end


def experts(
    x: Tensor,
    logits: Tensor,
    router: Router,
    kind: ExpertActivation,
    matrices: ExpertMatrices,
    *,
    batch_invariant: bool = False,
    card: Card | None = None,
) -> Tensor:
    is_plain = isinstance(kind, str) and not router.weighs_inputs and matrices.up_bias is None
    if matrices.gate is None and not is_plain:
        raise ValueError("experts without a gate have no biases but those of down, weighed inputs or clamps in Triton")
    _check(x, logits, router, kind, matrices)
    (tokens, hidden), output, card = x.shape, torch.empty_like(x), card or card_of(x.device)
    if not tokens:
        return output
    tile = _tile(x, router, matrices, card, batch_invariant)
    choice = choose_experts(logits, router)
    step = _Step(align_block_size(choice.experts, router, tile.block_m), choice.experts.numel(), tile, card)
    if matrices.gate is None:
        activated = _grouped_product(x, matrices.up, router.count, step, kind=kind)
    else:
        factors = choice.weights if router.weighs_inputs else None
        gate = _Gate(matrices.gate, kind, matrices.gate_bias, matrices.up_bias, factors)
        activated = _grouped_product(x, matrices.up, router.count, step, gate)
    results = _grouped_product(activated, matrices.down, router.count, step)
    _weighted_sum_kernel[(tokens, ceil_div(hidden, _COLUMNS_AT_ONCE))](
        results,
        matrices.down_bias,
        choice.experts,
        None if router.weighs_inputs else choice.weights,
        output,
        FIRST=router.first,
        COUNT=router.count,
        ACTIVE=router.active,
        HIDDEN=hidden,
        BLOCK=_COLUMNS_AT_ONCE,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return output


class _Step(NamedTuple):
    """The common arguments of a step's products."""

    blocks: Blocks
    num_pairs: int
    tile: Tile
    card: Card


class _Gate(NamedTuple):
    """The gate of a product: its matrix, the activation, the biases of both, and factors of the pairs' inputs."""

    matrix: PackedLinear
    kind: ExpertActivation  # the activation
    bias: Tensor | None
    product_bias: Tensor | None
    factors: Tensor | None


class _Layout(NamedTuple):
    """The layout of a matrix, as parameters of its linear's kernel."""

    format: str  # "float", "w4a16", "w8a16", "w8a8" or "fp8"
    block_k: int
    scale_features: int = 0
    scales_a_row: int = 0


def _check(x: Tensor, logits: Tensor, router: Router, kind: ExpertActivation, matrices: ExpertMatrices) -> None:
    """Raise a `ValueError` if the arguments do not fit each other."""
    num_experts, active, first, count = router.num_experts, router.active, router.first, router.count
    if not 0 < active <= num_experts or count < 1 or first < 0 or first + count > num_experts:
        raise ValueError(
            f"{active} of {num_experts} experts, of which those from {first} on, {count} in number, are here"
        )
    if num_experts > _MAX_EXPERTS:
        raise ValueError(f"{num_experts} experts: there may be up to {_MAX_EXPERTS}")
    if isinstance(kind, str) and kind not in ACTIVATIONS:
        raise ValueError(f'no activation "{kind}": there are {", ".join(ACTIVATIONS)}')
    if x.ndim != 2 or not x.is_contiguous() or dtype_name(x.dtype) not in FLOAT_DTYPES:
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)} with strides {x.stride()}: give contiguous floats in a matrix"
        )
    tokens, hidden = x.shape
    is_float = logits.dtype in {x.dtype, torch.float32}
    if logits.shape != (tokens, num_experts) or not is_float or not logits.is_contiguous():
        raise ValueError(
            f"logits are {logits.dtype} {list(logits.shape)} with strides {logits.stride()}: {tokens} tokens take "
            f"contiguous {x.dtype} or float32 [{tokens}, {num_experts}]"
        )
    if tokens * active > _MAX_PAIRS:
        raise ValueError(f"{tokens} tokens of {active} experts each: a step has up to {_MAX_PAIRS} such pairs")
    size = matrices.up.out_features // count
    shapes = {"up": (size, hidden), "down": (hidden, size)}
    if matrices.gate is not None:
        shapes = {"gate": (size, hidden)} | shapes
    for name, (outputs, features) in shapes.items():
        packed: PackedLinear = getattr(matrices, name)
        if packed.out_features % (count * _FEATURES_UNIT):
            raise ValueError(
                f"{packed.out_features} outputs are not those of {count} experts, each a multiple of {_FEATURES_UNIT}"
            )
        is_float, is_rusts = packed.format in FLOAT_DTYPES, packed.layout is not None
        if packed.format not in _FORMATS or is_float == bool(packed.factors) or is_rusts:
            raise ValueError(f"the experts' matrices {name} are {packed.format}, not packed for Triton")
        if not packed.data.is_contiguous():
            raise ValueError(f"the experts' matrices {name} have strides {packed.data.stride()}: give contiguous rows")
        found = packed.out_features // count, packed.data.shape[1] * (2 if packed.format in _FOUR_BITS else 1)
        if found != (outputs, features) or packed.dtype != dtype_name(x.dtype):
            raise ValueError(
                f"an expert's matrix {name} is {packed.dtype} {list(found)}, beside {dtype_name(x.dtype)} "
                f"{[outputs, features]}"
            )
    _check_biases(matrices, {name: (count, outputs) for name, (outputs, _) in shapes.items()}, x.dtype)


def _check_biases(matrices: ExpertMatrices, shapes: dict[str, tuple[int, int]], dtype: torch.dtype) -> None:
    for name, shape in shapes.items():
        bias: Tensor | None = getattr(matrices, f"{name}_bias")
        if bias is not None and (bias.shape != shape or bias.dtype is not dtype or not bias.is_contiguous()):
            raise ValueError(
                f"the biases of {name} are {bias.dtype} {list(bias.shape)} with strides {bias.stride()}: give "
                f"contiguous {dtype} {list(shape)}"
            )
    if (matrices.gate_bias is None) != (matrices.up_bias is None):
        raise ValueError("biases of the gate or of up alone: give both or none")


def _tile(x: Tensor, router: Router, matrices: ExpertMatrices, card: Card, batch_invariant: bool) -> Tile:
    formats = {matrix.format for matrix in (matrices.gate, matrices.up, matrices.down) if matrix is not None}
    if "int8" in formats and not has_integer_dot(card):
        return w8a8_tile(0, has_dot=False)
    rows_an_expert = ceil_div(len(x) * router.active, router.num_experts)
    return float_tile(has_tensor_cores(x, card), rows_an_expert, 0, batch_invariant)


def _layout(x: Tensor, packed: PackedLinear, card: Card) -> _Layout:
    has_cores = has_tensor_cores(x, card)
    if packed.format in FLOAT_DTYPES:
        return _Layout("float", float_block_k(has_cores))
    if packed.format == "int8":
        check_w8a8(x, packed.data, packed.factors[0], None)
        return _Layout("w8a8", w8a8_tile(0, has_integer_dot(card)).block_k)
    if packed.format == "float8_e4m3fn":
        scales = packed.factors[0]
        _, scale_features = fp8_scale_block(x, packed.data, scales, None, packed.fp8_block)
        return _Layout("fp8", float_block_k(has_cores), scale_features, scales.shape[1])
    if packed.format == "q8_0":
        group_size = w8a16_group_size(x, packed.data, packed.factors[0], None)
        return _Layout("w8a16", w8a16_block_k(has_cores, group_size), group_size)
    scales, minimums = packed.factors
    group_size = w4a16_group_size(x, packed.data, scales, minimums, None)
    return _Layout("w4a16", w4a16_block_k(has_cores, group_size), group_size)


def _grouped_product(
    x: Tensor,
    packed: PackedLinear,
    count: int,
    step: _Step,
    gate: _Gate | None = None,
    kind: ExpertActivation | None = None,
) -> Tensor:
    """Each pair's row of x times the matrix of its expert, [pairs, out_features]; x has a row for each token or pair.

    With a gate, `act(gate product) * product`, after biases are added to both; with a `kind` alone, `act(product)`.
    Rows of pairs with experts of other ranks are not written.
    """
    out_features = packed.out_features // count
    output = torch.empty((step.num_pairs, out_features), dtype=x.dtype, device=x.device)
    num_blocks, tile = len(step.blocks.experts), step.tile
    matrices = [packed] if gate is None else [packed, gate.matrix]
    is_quantised = any(matrix.format == "int8" for matrix in matrices)
    kind = kind if gate is None else gate.kind
    name, clamp = _activation_of(kind)
    _grouped_kernel[(num_blocks * ceil_div(out_features, tile.block_n),)](
        (x, *(quantise_rows(x) if is_quantised else (None, None))),
        _elements(packed),
        None if gate is None else _elements(gate.matrix),
        None if gate is None else gate.bias,
        None if gate is None else gate.product_bias,
        None if gate is None else gate.factors,
        step.blocks.pairs,
        step.blocks.experts,
        output,
        num_blocks,
        ROWS_A_TOKEN=step.num_pairs // len(x),
        IN_FEATURES=x.shape[1],
        OUT_FEATURES=out_features,
        LAYOUT=tuple(_layout(x, packed, step.card)),
        GATE_LAYOUT=None if gate is None else tuple(_layout(x, gate.matrix, step.card)),
        KIND=name,
        CLAMP=clamp,
        INTEGER_DOT=has_integer_dot(step.card),
        **{name: value for name, value in options_of(tile).items() if name != "BLOCK_K"},
    )
    return output


def _activation_of(kind: ExpertActivation | None) -> tuple[str | None, tuple[float, float] | None]:
    """KIND and CLAMP of `activate_gated`."""
    match kind:
        case ClampedSwiglu():
            return None, (kind.limit, kind.alpha)
        case LimitedSwiglu():
            return "silu", (kind.limit, 0.0)
        case _:
            return kind, None


def _elements(packed: PackedLinear) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The elements, scales and minimums of a matrix."""
    data = packed.data.view(torch.uint8) if packed.format in {"q8_0", "float8_e4m3fn"} else packed.data
    scales, minimums = (*packed.factors, None, None)[:2]
    return data, scales, minimums


# If the compiler knew that the number is 1, or a multiple of 16, it might choose another order.
@triton.jit(do_not_specialize=["num_blocks"])
def _grouped_kernel(
    x,
    matrix,
    gate_matrix,
    gate_bias_ptr,
    bias_ptr,
    factors_ptr,
    pairs_ptr,
    block_experts_ptr,
    output_ptr,
    num_blocks,
    ROWS_A_TOKEN: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    LAYOUT: tl.constexpr,
    GATE_LAYOUT: tl.constexpr,
    KIND: tl.constexpr,
    CLAMP: tl.constexpr,
    INTEGER_DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    block_m, block_n = blocks_of_program(num_blocks, OUT_FEATURES, BLOCK_N, GROUP_M)
    expert = tl.load(block_experts_ptr + block_m).to(tl.int64)
    if expert < 0:
        return
    pairs = tl.load(pairs_ptr + block_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_row = pairs >= 0
    columns = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = columns < OUT_FEATURES
    rows, outputs = pairs // ROWS_A_TOKEN, expert * OUT_FEATURES + columns
    dtype: tl.constexpr = output_ptr.dtype.element_ty
    # The inputs of the activation are rounded, like a linear's result; early, as that needs fewer registers.
    if GATE_LAYOUT is None:  # Triton 3.6 cannot compare a tuple that contains None with None.
        product = _sums(x, rows, is_row, matrix, outputs, is_output, IN_FEATURES, LAYOUT, INTEGER_DOT)
        if KIND is not None:
            product = activate(product.to(dtype).to(tl.float32), KIND)
    else:
        gate = _sums(x, rows, is_row, gate_matrix, outputs, is_output, IN_FEATURES, GATE_LAYOUT, INTEGER_DOT)
        if factors_ptr is not None:  # Factors of the inputs are factors of the sums.
            gate *= tl.load(factors_ptr + pairs, mask=is_row, other=0.0)[None, :]
        gate = gate.to(dtype)
        up = _sums(x, rows, is_row, matrix, outputs, is_output, IN_FEATURES, LAYOUT, INTEGER_DOT)
        if factors_ptr is not None:
            up *= tl.load(factors_ptr + pairs, mask=is_row, other=0.0)[None, :]
        up = up.to(dtype)
        gate, up = gate.to(tl.float32), up.to(tl.float32)
        if bias_ptr is not None:
            gate += tl.load(gate_bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
            up += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
        product = activate_gated(gate, up, KIND, CLAMP)
    pointers = output_ptr + pairs[:, None] * OUT_FEATURES + columns[None, :]
    tl.store(pointers, tl.trans(product).to(dtype), mask=is_row[:, None] & is_output[None, :])


@triton.jit
def _sums(
    x,
    rows,
    is_row,
    matrix,
    outputs,
    is_output,
    IN_FEATURES: tl.constexpr,
    LAYOUT: tl.constexpr,
    INTEGER_DOT: tl.constexpr,
):
    """`matrix @ x.T` for some outputs and rows, by the linear of the format; float32 [outputs, rows]."""
    FORMAT: tl.constexpr = LAYOUT[0]
    BLOCK_K: tl.constexpr = LAYOUT[1]
    SCALE_FEATURES: tl.constexpr = LAYOUT[2]
    SCALES_A_ROW: tl.constexpr = LAYOUT[3]
    x_ptr, x_integers_ptr, x_scales_ptr = x
    elements_ptr, scales_ptr, minimums_ptr = matrix
    if FORMAT == "float":
        sums = float_sums(elements_ptr, outputs, is_output, x_ptr, rows, is_row, IN_FEATURES, BLOCK_K)
    elif FORMAT == "w4a16":
        sums = w4a16_sums(
            x_ptr,
            rows,
            is_row,
            elements_ptr,
            scales_ptr,
            minimums_ptr,
            outputs,
            is_output,
            IN_FEATURES,
            SCALE_FEATURES,
            BLOCK_K,
        )
    elif FORMAT == "w8a16":
        sums = w8a16_sums(
            x_ptr,
            rows,
            is_row,
            elements_ptr,
            scales_ptr,
            outputs,
            is_output,
            IN_FEATURES,
            SCALE_FEATURES,
            BLOCK_K,
        )
    elif FORMAT == "w8a8":
        sums = w8a8_sums(
            x_integers_ptr,
            x_scales_ptr,
            rows,
            is_row,
            elements_ptr,
            scales_ptr,
            outputs,
            is_output,
            IN_FEATURES,
            INTEGER_DOT,
            BLOCK_K,
        )
    else:
        tl.static_assert(FORMAT == "fp8")
        sums = fp8_sums(
            x_ptr,
            rows,
            is_row,
            elements_ptr,
            scales_ptr,
            outputs,
            is_output,
            IN_FEATURES,
            SCALES_A_ROW,
            1,
            SCALE_FEATURES,
            BLOCK_K,
        )
    return sums


@triton.jit
def _weighted_sum_kernel(
    results_ptr,
    bias_ptr,
    experts_ptr,
    weights_ptr,
    output_ptr,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    ACTIVE: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < HIDDEN
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for pair in range(token * ACTIVE, (token + 1) * ACTIVE):
        expert = tl.load(experts_ptr + pair)
        if (expert >= FIRST) & (expert < FIRST + COUNT):
            results = tl.load(results_ptr + pair * HIDDEN + columns, mask=is_column, other=0.0).to(tl.float32)
            if bias_ptr is not None:
                biases = bias_ptr + (expert - FIRST).to(tl.int64) * HIDDEN + columns
                results += tl.load(biases, mask=is_column, other=0.0).to(tl.float32)
            if weights_ptr is None:
                total += results
            else:
                total = tl.fma(results, tl.broadcast_to(tl.load(weights_ptr + pair), [BLOCK]), total)
    tl.store(output_ptr + token * HIDDEN + columns, total.to(output_ptr.dtype.element_ty), mask=is_column)
