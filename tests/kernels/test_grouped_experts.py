"""Layers of experts in Triton beside the reference, in each format, with biases and a clamped gate and without; and a
token alone and among others.

As for the linears, bfloat16 needs a card: Triton 3.9's interpreter gets its `tl.dot` wrong.
"""

from dataclasses import replace

import pytest
import torch
from pyllm_kernels import (
    ClampedSwiglu,
    ExpertMatrices,
    Kernels,
    LimitedSwiglu,
    MatrixRows,
    PackedLinear,
    Router,
    batch_invariant,
    dtype_name,
    select,
)
from pyllm_kernels.ops.experts import experts
from pyllm_kernels.ops.packed_linear import kept_format, pack_linear, pack_rows
from pyllm_kernels.torch_bridge import as_tensor
from torch import Tensor

from tests.kernels.quantised_weights import DTYPES, rows_of
from tests.tiers import full

reference = experts.version("reference")
HIDDEN, SIZE, EXPERTS = 96, 64, 5
KINDS = ["float", "q4_0", "q4_1", "q8_0", "int8", "fp8 64", "fp8 96"]
BIASES = ("gate_bias", "up_bias", "down_bias")
CLAMPED = ClampedSwiglu(0.9, 1.702)  # Beside biases of its size, the limit holds many numbers back.
# An activation, and whether there are biases.
ACTIVATIONS = pytest.mark.parametrize(("activation", "biased"), [("silu", False), (CLAMPED, True)], ids=["silu", "gpt"])
# The interpreter is slow: numbers of tokens are about the smallest that fill what they are to fill. Few tokens and many
# have a tile each in two-byte floats; 45 tokens of two experts give each expert more rows than few.
BFLOAT16 = pytest.param(torch.bfloat16, 45, marks=pytest.mark.gpu)
# Several roundings to the dtype; an element of int8 may be rounded to its neighbour.
NUMPY_WARNS = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # As the interpreter computes NaNs.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@pytest.fixture
def triton(device: torch.device) -> Kernels:
    return select("triton", device)


def pack(kernels: Kernels, kind: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> PackedLinear:
    outputs, features = shape
    if kind == "float":
        return kernels[pack_linear]((torch.randn(outputs, features) * features**-0.5).to(dtype).to(device))
    rows: MatrixRows = rows_of(kind, outputs, features)
    packed = kernels[pack_rows]([rows], kernels[kept_format](rows) or dtype_name(dtype), dtype_name(dtype))
    packed = packed.moved(lambda array: as_tensor(array).to(device))
    assert packed.factors
    return packed


def matrices_of(
    kernels: Kernels, kinds: tuple[str, str, str], dtype: torch.dtype, device: torch.device
) -> ExpertMatrices:
    shapes = (EXPERTS * SIZE, HIDDEN), (EXPERTS * SIZE, HIDDEN), (EXPERTS * HIDDEN, SIZE)
    return ExpertMatrices(
        *(pack(kernels, kind, shape, dtype, device) for kind, shape in zip(kinds, shapes, strict=True))
    )


def with_biases(matrices: ExpertMatrices, names: tuple[str, ...] = BIASES) -> ExpertMatrices:
    weight = matrices.gate.data
    widths = {"gate_bias": SIZE, "up_bias": SIZE, "down_bias": HIDDEN}
    return replace(
        matrices,
        **{
            name: torch.randn(EXPERTS, widths[name]).to(getattr(torch, matrices.gate.dtype)).to(weight.device)
            for name in names
        },
    )


def inputs(tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x, logits = (torch.randn(tokens, width).to(dtype).to(device) for width in (HIDDEN, EXPERTS))
    return x / 8, logits


def part_of(matrices: ExpertMatrices, first: int, count: int) -> ExpertMatrices:
    """Those of some of the experts."""

    def cut(packed: PackedLinear) -> PackedLinear:
        size = packed.out_features // EXPERTS
        rows = slice(first * size, (first + count) * size)
        factors = tuple(factor[rows].contiguous() for factor in packed.factors)
        return replace(packed, data=packed.data[rows].contiguous(), factors=factors)

    biases = {name: bias for name in BIASES if (bias := getattr(matrices, name)) is not None}
    return ExpertMatrices(
        *(cut(packed) for packed in (matrices.gate, matrices.up, matrices.down)),
        **{name: bias[first : first + count] for name, bias in biases.items()},
    )


def check(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """To a share of the largest number of a token."""
    assert actual.dtype is expected.dtype
    largest = expected.double().abs().amax(dim=-1, keepdim=True).clamp(min=1e-9)
    assert ((actual.double() - expected.double()).abs() / largest).max() <= tolerance


@pytest.mark.parametrize(("dtype", "tokens"), [(torch.float32, 1), (torch.float16, 45), BFLOAT16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_reference(kind: str, dtype: torch.dtype, tokens: int, triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(tokens, dtype, device)
    matrices = matrices_of(triton, (kind, kind, kind), dtype, device)
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    output = triton[experts](x, logits, router, "silu", matrices)
    check(
        output,
        reference(x, logits, router, "silu", matrices),
        max(TOLERANCE[dtype], 0.02 * (kind == "int8")),
    )


@pytest.mark.parametrize(
    ("active", "normalised", "kind"),
    [(1, True, "gelu"), (1, False, "silu"), (3, True, "gelu_tanh"), (3, False, "gelu"), (EXPERTS, False, "gelu_tanh")],
)
def test_rules_and_activations(active: int, normalised: bool, kind: str, triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(9, torch.float32, device)
    # What is quantised in several formats, as GGUF's files are.
    matrices = matrices_of(triton, ("q4_0", "float", "fp8 64"), torch.float32, device)
    router = Router(EXPERTS, active, normalised, 0, EXPERTS)
    check(
        triton[experts](x, logits, router, kind, matrices),
        reference(x, logits, router, kind, matrices),
        TOLERANCE[torch.float32],
    )


@pytest.mark.parametrize("kind", ["float", "q8_0", "int8"])
def test_experts_without_a_gate(kind: str, triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(9, torch.float32, device)
    matrices = replace(matrices_of(triton, (kind, kind, kind), torch.float32, device), gate=None)
    matrices = replace(matrices, down_bias=torch.randn(EXPERTS, HIDDEN).to(device))
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    check(
        triton[experts](x, logits, router, "relu2", matrices),
        reference(x, logits, router, "relu2", matrices),
        0.02 if kind == "int8" else TOLERANCE[torch.float32],
    )
    for arguments in (
        (replace(router, weighs_inputs=True), "relu2", matrices),
        (router, CLAMPED, matrices),
        (router, "relu2", replace(matrices, up_bias=torch.randn(EXPERTS, SIZE).to(device))),
    ):
        with pytest.raises(ValueError, match="experts without a gate have no biases but those of down"):
            triton[experts](x, logits, *arguments)


def test_weights_of_inputs(triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(9, torch.float32, device)
    matrices = matrices_of(triton, ("float", "float", "float"), torch.float32, device)
    factors = torch.rand(EXPERTS, device=x.device) + 0.5
    router = Router(EXPERTS, 2, False, 0, EXPERTS, scores="sigmoid", weighs_inputs=True, expert_factors=factors)
    found, expected = (compute(x, logits, router, "silu", matrices) for compute in (triton[experts], reference))
    check(found, expected, TOLERANCE[torch.float32])
    of_outputs = triton[experts](x, logits, replace(router, weighs_inputs=False), "silu", matrices)
    assert (found - of_outputs).abs().max() > 1e-2


@pytest.mark.parametrize(("dtype", "tokens"), [(torch.float32, 45), (torch.float16, 3), BFLOAT16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_biases_and_a_clamped_gate(
    kind: str, dtype: torch.dtype, tokens: int, triton: Kernels, device: torch.device
) -> None:
    x, logits = inputs(tokens, dtype, device)
    matrices = with_biases(matrices_of(triton, (kind, kind, kind), dtype, device))
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    output = triton[experts](x, logits, router, CLAMPED, matrices)
    expected = reference(x, logits, router, CLAMPED, matrices)
    check(output, expected, max(TOLERANCE[dtype], 0.02 * (kind == "int8")))


def test_a_limited_activation(triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(45, torch.float32, device)
    matrices, router = matrices_of(triton, ("float",) * 3, torch.float32, device), Router(EXPERTS, 2, True, 0, EXPERTS)
    output = triton[experts](x, logits, router, LimitedSwiglu(0.4), matrices)
    check(output, reference(x, logits, router, LimitedSwiglu(0.4), matrices), TOLERANCE[torch.float32])


@pytest.mark.parametrize("activation", ["silu", CLAMPED], ids=["silu", "clamped"])
@pytest.mark.parametrize("names", [(), ("gate_bias", "up_bias"), ("down_bias",), BIASES], ids=str)
def test_some_of_the_biases(
    names: tuple[str, ...], activation: str | ClampedSwiglu, triton: Kernels, device: torch.device
) -> None:
    """Of slices of an expert, one rank alone has the last."""
    x, logits = inputs(9, torch.float32, device)
    matrices = with_biases(matrices_of(triton, ("float", "q4_1", "float"), torch.float32, device), names)
    router = Router(EXPERTS, 3, True, 0, EXPERTS)
    output = triton[experts](8 * x, logits, router, activation, matrices)
    check(output, reference(8 * x, logits, router, activation, matrices), TOLERANCE[torch.float32])


@NUMPY_WARNS
def test_a_clamp_keeps_what_is_not_a_number(triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(3, torch.float32, device)
    matrices = matrices_of(triton, ("float", "float", "float"), torch.float32, device)
    router = Router(EXPERTS, EXPERTS, True, 0, EXPERTS)
    for name in ("gate_bias", "up_bias"):
        zeros = {bias: torch.zeros(EXPERTS, SIZE, device=device) for bias in ("gate_bias", "up_bias")}
        zeros[name][2] = torch.nan
        assert triton[experts](x, logits, router, CLAMPED, replace(matrices, **zeros)).isnan().all()


@pytest.mark.parametrize(("favourites", "dtype"), [((3, 1), torch.float32), ((0, 4), torch.float16)], ids=str)
def test_all_tokens_to_two_experts(
    favourites: tuple[int, int], dtype: torch.dtype, triton: Kernels, device: torch.device
) -> None:
    """The others have no rows, and these have several tiles of them."""
    x, logits = inputs(66, dtype, device)
    logits[:, list(favourites)] += 100
    matrices = matrices_of(triton, ("float", "float", "float"), dtype, device)
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    output = triton[experts](x, logits, router, "silu", matrices)
    check(output, reference(x, logits, router, "silu", matrices), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("kind", "activation", "biased"),
    [("float", CLAMPED, True), ("q4_1", "silu", False), ("int8", CLAMPED, True), ("fp8 64", "silu", False)],
)
def test_ranks_with_some_of_the_experts_add_up(
    kind: str, activation: str | ClampedSwiglu, biased: bool, triton: Kernels, device: torch.device
) -> None:
    x, logits = inputs(13, torch.float32, device)
    whole = matrices_of(triton, (kind, kind, kind), torch.float32, device)
    whole = with_biases(whole) if biased else whole
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    total = torch.zeros_like(x)
    for first, count in ((0, 1), (1, 3), (4, 1)):
        own, rank = part_of(whole, first, count), replace(router, first=first, count=count)
        part = triton[experts](x, logits, rank, activation, own)
        check(
            part + 1,
            reference(x, logits, rank, activation, own) + 1,
            0.02 if kind == "int8" else 1e-5,
        )
        total += part
    check(total, triton[experts](x, logits, router, activation, whole), 1e-5)


@NUMPY_WARNS
def test_a_token_whose_experts_are_elsewhere_gets_nothing(triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(6, torch.float32, device)
    logits[2:4, :2] += 100
    own = part_of(with_biases(matrices_of(triton, ("float", "float", "float"), torch.float32, device)), 2, 3)
    output = triton[experts](x, logits, Router(EXPERTS, 2, True, 2, 3), "silu", own)
    assert not output[2:4].any()
    x[2:4] = torch.nan
    logits[2:4, 0] = torch.nan
    assert torch.equal(triton[experts](x, logits, Router(EXPERTS, 2, True, 2, 3), "silu", own)[:2], output[:2])


def test_no_tokens(triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(0, torch.float16, device)
    matrices = matrices_of(triton, ("float", "float", "float"), torch.float16, device)
    assert triton[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS), "silu", matrices).shape == (0, HIDDEN)


@NUMPY_WARNS
@pytest.mark.parametrize(
    ("dtype", "tokens", "activation", "biased", "kind"),
    [
        *[(torch.float32, 34, "silu", False, kind) for kind in ("float", "fp8 96")],
        *[(torch.float16, 66, CLAMPED, True, kind) for kind in ("q4_1", "int8")],
        *[full(torch.float32, 34, "silu", False, kind) for kind in ("q4_0", "q8_0", "int8")],
        *[full(torch.float16, 66, CLAMPED, True, kind) for kind in ("float", "fp8 64")],
    ],
    ids=str,
)
def test_batch_invariant_tokens_are_bitwise_the_same_alone(
    kind: str,
    dtype: torch.dtype,
    tokens: int,
    activation: str | ClampedSwiglu,
    biased: bool,
    triton: Kernels,
    device: torch.device,
) -> None:
    x, logits = inputs(tokens, dtype, device)
    logits[:, 2] += 100  # This expert has all tokens, which are more rows than a tile.
    matrices = matrices_of(triton, (kind, kind, kind), dtype, device)
    matrices = with_biases(matrices) if biased else matrices
    router = Router(EXPERTS, 2, True, 0, EXPERTS)

    def compute(some: slice) -> Tensor:
        compute_experts = batch_invariant(triton)[experts]
        return compute_experts(x[some].contiguous(), logits[some].contiguous(), router, activation, matrices)

    together = compute(slice(None))
    for some in (slice(3, 20), slice(tokens - 1, tokens)):
        assert torch.equal(compute(some), together[some])
    x[5], logits[6] = torch.nan, torch.nan
    others = torch.ones(tokens, dtype=torch.bool, device=device)
    others[5:7] = False
    assert torch.equal(compute(slice(None))[others], together[others])


@ACTIVATIONS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_few_tokens_are_bitwise_the_same_among_many(
    kind: str,
    dtype: torch.dtype,
    activation: str | ClampedSwiglu,
    biased: bool,
    triton: Kernels,
    device: torch.device,
) -> None:
    x, logits = inputs(170, dtype, device)
    matrices = matrices_of(triton, (kind, kind, kind), dtype, device)
    matrices = with_biases(matrices) if biased else matrices
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    together = triton[experts](x, logits, router, activation, matrices)
    assert torch.equal(triton[experts](x[:9], logits[:9], router, activation, matrices), together[:9])


@pytest.mark.gpu
@ACTIVATIONS
@pytest.mark.parametrize("kind", KINDS)
def test_a_cuda_graph_holds_it(
    kind: str, activation: str | ClampedSwiglu, biased: bool, triton: Kernels, device: torch.device
) -> None:
    """Captured with one routing, replayed with others."""
    x, logits = inputs(40, torch.float16, device)
    matrices = matrices_of(triton, (kind, kind, kind), torch.float16, device)
    matrices = with_biases(matrices) if biased else matrices
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    triton[experts](x, logits, router, activation, matrices)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = triton[experts](x, logits, router, activation, matrices)
    for shift in (1, 100):
        x.add_(0.1)
        logits[:, shift % EXPERTS] += shift
        graph.replay()
        assert torch.equal(output, triton[experts](x, logits, router, activation, matrices))


def test_what_does_not_fit_is_refused(triton: Kernels, device: torch.device) -> None:
    x, logits = inputs(3, torch.float32, device)
    good = matrices_of(triton, ("float", "q4_0", "float"), torch.float32, device)
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    half = matrices_of(triton, ("float", "float", "float"), torch.float16, device)
    thin = triton[pack_linear](torch.zeros(EXPERTS * 16, HIDDEN, device=device))
    many = torch.empty(2**22, 32, device="meta"), torch.empty(2**22, 1024, device="meta")
    aside = triton[pack_linear](torch.zeros(EXPERTS * SIZE, 2 * HIDDEN, device=device)[:, :HIDDEN])
    rust = select("cpu", "cpu")[pack_linear](torch.zeros(EXPERTS * SIZE, HIDDEN))
    biases = torch.zeros(EXPERTS, HIDDEN, device=device)
    for arguments, message in (
        ((x, logits, replace(router, active=6), "silu", good), "6 of 5 experts"),
        ((x, logits, replace(router, num_experts=1025), "silu", good), "1025 experts: there may be up to 1024"),
        ((*many, Router(1024, 600, True, 0, 5), "silu", good), "4194304 tokens of 600 experts each"),
        ((x, logits, replace(router, first=3, count=3), "silu", good), "those from 3 on, 3 in number"),
        (
            (x, logits, replace(router, count=3), "silu", replace(good, gate=thin)),
            "80 outputs are not those of 3 experts",
        ),
        ((x, logits, router, "silu", replace(good, gate=thin, up=thin)), "experts, each a multiple of 32"),
        ((x, logits, router, "silu", replace(good, down=good.up)), r"matrix down is float32 \[64, 96\], beside"),
        ((x, logits, router, "silu", half), r"matrix gate is float16 .*, beside float32"),
        ((x, logits, router, "silu", replace(good, up=rust)), "matrices up are float32, not packed for Triton"),
        ((x, logits, router, "silu", replace(good, up=aside)), r"matrices up have strides \(192, 1\)"),
        (
            (x, logits, router, CLAMPED, replace(good, gate_bias=biases, up_bias=biases)),
            r"the biases of gate are torch.float32 \[5, 96\] .*: give contiguous torch.float32 \[5, 64\]",
        ),
        ((x, logits, router, "silu", replace(good, down_bias=biases.half())), "biases of down are torch.float16"),
        ((x, logits, router, "silu", replace(good, down_bias=biases.T.contiguous().T)), r"with strides \(1, 5\)"),
        ((x, logits, router, "silu", replace(good, up_bias=biases[:, :SIZE].contiguous())), "of up alone"),
        ((x, logits, router, "mish", good), 'no activation "mish": there are silu, gelu, gelu_tanh, relu, relu2'),
        ((x, logits[:2], router, "silu", good), r"logits are torch.float32 \[2, 5\] .*: 3 tokens take"),
        ((x, logits.half(), router, "silu", good), "logits are torch.float16"),
        ((x.double(), logits.double(), router, "silu", good), r"x is torch.float64"),
        ((x[:, 0], logits, router, "silu", good), r"x is torch.float32 \[3\]"),
        ((x[:, ::2], logits, router, "silu", good), r"with strides \(96, 2\): give contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            triton[experts](*arguments)
