"""A layer of experts beside the same experts one by one, in the formats that a CPU packs them in."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
from pyllm_kernels.graph import Graph
from pyllm_kernels.matrix_rows import MatrixRows
from pyllm_kernels.ops.activation import LimitedSwiglu, activation, sigmoid
from pyllm_kernels.ops.experts import ClampedSwiglu, ExpertGroups, ExpertMatrices, Router, experts
from pyllm_kernels.ops.packed_linear import PackedLinear, pack_linear, pack_rows, packed_linear
from pyllm_kernels.registry import select
from pyllm_kernels.tensors import Array, Floats, numpy_dtype, softmax, widened

CPU = select("cpu", "cpu")
HIDDEN, SIZE, EXPERTS = 256, 64, 5
FORMATS = ["float32", "int8", "q8_0", "q4_0", "mxfp4"]


def pack(weight: Array, weight_format: str) -> PackedLinear:
    """Matrices [experts, outputs, inputs] as one."""
    rows = joined(weight)
    if weight_format in {"float32", "int8"}:
        return CPU[pack_rows]([MatrixRows.of(rows)], weight_format, "float32")
    blocks = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[weight_format.upper()])
    return CPU[pack_rows]([MatrixRows.of(blocks, weight_format)], weight_format, "float32")


def joined(weight: Array) -> Array:
    return weight.reshape(-1, weight.shape[-1])


def weights() -> tuple[Floats, Floats, Floats]:
    generator = np.random.default_rng(0)
    shapes = (EXPERTS, SIZE, HIDDEN), (EXPERTS, SIZE, HIDDEN), (EXPERTS, HIDDEN, SIZE)
    gate, up, down = (generator.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5) for shape in shapes)
    return gate, up, down


def inputs(tokens: int, dtype: str = "float32") -> tuple[Array, Array]:
    generator = np.random.default_rng(1)
    x, logits = (generator.standard_normal((tokens, width), np.float32) for width in (HIDDEN, EXPERTS))
    return x.astype(numpy_dtype(dtype)), logits.astype(numpy_dtype(dtype))


def biases(dtype: str = "float32") -> dict[str, Array]:
    generator = np.random.default_rng(2)
    widths = {"gate_bias": SIZE, "up_bias": SIZE, "down_bias": HIDDEN}
    return {
        name: generator.standard_normal((EXPERTS, width), np.float32).astype(numpy_dtype(dtype))
        for name, width in widths.items()
    }


def one_by_one(x: Array, logits: Array, active: int, weight_format: str) -> Array:
    chosen = np.argsort(-logits, -1)[:, :active]
    shares = softmax(np.take_along_axis(logits, chosen, -1))
    packed = [[pack(weight[None], weight_format) for weight in kind] for kind in weights()]
    out = np.zeros_like(x)
    for token, (selected, factors) in enumerate(zip(chosen.tolist(), shares, strict=True)):
        for expert, factor in zip(selected, factors, strict=True):
            gate, up, down = (kind[expert] for kind in packed)
            row = x[token : token + 1]
            inner = np.concatenate((CPU[packed_linear](row, gate), CPU[packed_linear](row, up)), -1)
            out[token] += factor * CPU[packed_linear](CPU[activation](inner, "silu"), down)[0]
    return out


@pytest.mark.parametrize("weight_format", FORMATS)
def test_it_is_the_weighted_sum_of_the_experts_of_each_token(weight_format: str) -> None:
    x, logits = inputs(37)
    matrices = ExpertMatrices(*(pack(weight, weight_format) for weight in weights()))
    out = CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS), "silu", matrices)
    np.testing.assert_allclose(out, one_by_one(x, logits, 2, weight_format), atol=1e-5, rtol=1e-5)
    for token in (0, 20, 36):
        alone = x[token : token + 1], logits[token : token + 1]
        one = CPU[experts](*alone, Router(EXPERTS, 2, True, 0, EXPERTS), "silu", matrices)
        assert np.array_equal(one[0], out[token])


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_reference_computes_the_same(dtype: str, normalised: bool) -> None:
    x, logits = inputs(19, dtype)
    kinds = [joined(weight).astype(numpy_dtype(dtype)) for weight in weights()]
    router = Router(EXPERTS, 3, normalised, 0, EXPERTS)
    ours, theirs = (
        kernels[experts](x, logits, router, "gelu", ExpertMatrices(*(kernels[pack_linear](kind) for kind in kinds)))
        for kernels in (CPU, select("reference", "cpu"))
    )
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    assert ours.dtype == theirs.dtype == x.dtype
    np.testing.assert_allclose(widened(ours), widened(theirs), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("groups", [None, ExpertGroups(2, 1, 2), ExpertGroups(3, 2, 1)], ids=str)
def test_every_rule_of_a_router_is_that_of_the_reference(
    scores: str, normalised: bool, corrected: bool, groups: ExpertGroups | None
) -> None:
    generator = np.random.default_rng(3)
    x, _ = inputs(19, "bfloat16")
    logits = generator.standard_normal((19, 6), np.float32)
    correction = generator.random(6, np.float32) if corrected else None
    router = Router(6, 2, normalised, 0, 6, scores=scores, factor=1.5, correction=correction, groups=groups)
    router = replace(router, expert_factors=generator.random(6, np.float32))
    kinds = [joined(weight[[0, 1, 2, 3, 4, 0]]).astype(numpy_dtype("bfloat16")) for weight in weights()]
    ours, theirs = (
        kernels[experts](x, logits, router, "silu", ExpertMatrices(*(kernels[pack_linear](kind) for kind in kinds)))
        for kernels in (CPU, select("reference", "cpu"))
    )
    np.testing.assert_allclose(widened(ours), widened(theirs), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("weighs_inputs", [True, False])
@pytest.mark.parametrize("tolerance", [0.1, 5.0])
def test_a_sparse_mixer_and_weights_of_inputs_are_those_of_the_reference(weighs_inputs: bool, tolerance: float) -> None:
    x, logits = inputs(19)
    rule = {"scores": "sparse_mixer", "tolerance": tolerance, "factor": 0.7, "weighs_inputs": weighs_inputs}
    router = Router(EXPERTS, 2, False, 0, EXPERTS, **rule)
    ours, theirs = (
        kernels[experts](
            x, logits, router, "silu", ExpertMatrices(*(kernels[pack_linear](joined(each)) for each in weights()))
        )
        for kernels in (CPU, select("reference", "cpu"))
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    other = CPU[experts](
        x,
        logits,
        replace(router, weighs_inputs=not weighs_inputs),
        "silu",
        ExpertMatrices(*(CPU[pack_linear](joined(each)) for each in weights())),
    )
    assert np.abs(other - ours).max() > 1e-2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_biases_and_a_clamped_gate_are_those_of_the_definition(dtype: str) -> None:
    x, logits = inputs(29, dtype)
    gate, up, down = (weight.astype(numpy_dtype(dtype)).astype(np.float64) for weight in weights())
    of_gate, of_up, of_down = (bias.astype(np.float64) for bias in biases(dtype).values())
    expected = np.zeros(x.shape)
    rows, scores = x.astype(np.float64), widened(logits)
    chosen = np.argsort(-scores, -1)[:, :3]
    shares = softmax(np.take_along_axis(scores, chosen, -1))
    for token, selected in enumerate(chosen.tolist()):
        for share, expert in zip(shares[token], selected, strict=True):
            gates = np.minimum(gate[expert] @ rows[token] + of_gate[expert], 0.9)
            ups = np.clip(up[expert] @ rows[token] + of_up[expert], -0.9, 0.9)
            inner = (ups + 1) * gates * sigmoid(1.702 * gates)
            expected[token] += share * (down[expert] @ inner + of_down[expert])
    router, tolerance = Router(EXPERTS, 3, True, 0, EXPERTS), 1e-5 if dtype == "float32" else 5e-2
    for kernels in (CPU, select("reference", "cpu")):
        packed = (kernels[pack_linear](joined(weight).astype(numpy_dtype(dtype))) for weight in weights())
        matrices = ExpertMatrices(*packed, **biases(dtype))
        out = kernels[experts](x, logits, router, ClampedSwiglu(0.9, 1.702), matrices)
        np.testing.assert_allclose(widened(out), expected, atol=tolerance, rtol=tolerance)
        alone = kernels[experts](x[7:8], logits[7:8], router, ClampedSwiglu(0.9, 1.702), matrices)
        assert kernels is not CPU or np.array_equal(alone[0], out[7])


def test_a_limited_activation_is_that_of_the_definition() -> None:
    x, logits = inputs(13)
    gate, up, down = (weight.astype(np.float64) for weight in weights())
    chosen = np.argmax(logits, -1)
    expected = np.zeros(x.shape)
    for token, expert in enumerate(chosen.tolist()):
        gates = gate[expert] @ x[token]
        inner = np.minimum(gates * sigmoid(gates), 0.4) * np.clip(up[expert] @ x[token], -0.4, 0.4)
        expected[token] = down[expert] @ inner
    router = Router(EXPERTS, 1, True, 0, EXPERTS)
    for kernels in (CPU, select("reference", "cpu")):
        matrices = ExpertMatrices(*(kernels[pack_linear](joined(weight)) for weight in weights()))
        out = kernels[experts](x, logits, router, LimitedSwiglu(0.4), matrices)
        np.testing.assert_allclose(out, expected, atol=1e-5, rtol=1e-5)


def test_experts_without_a_gate_are_those_of_the_reference() -> None:
    kinds, (x, logits) = [joined(weight) for weight in weights()[1:]], inputs(19)
    router = Router(EXPERTS, 3, True, 0, EXPERTS)
    of_both = [
        (kernels, ExpertMatrices(None, *(kernels[pack_linear](kind) for kind in kinds)))
        for kernels in (CPU, select("reference", "cpu"))
    ]
    ours, theirs = (kernels[experts](x, logits, router, "relu2", matrices) for kernels, matrices in of_both)
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="the experts have no gate"):
        CPU[experts](x, logits, router, ClampedSwiglu(7.0, 1.702), of_both[0][1])


def test_slices_of_experts_add_up_where_one_rank_has_the_last_bias() -> None:
    x, logits = inputs(11)
    router, kind = Router(EXPERTS, 2, True, 0, EXPERTS), ClampedSwiglu(0.9, 1.702)
    whole = ExpertMatrices(*(pack(each, "q8_0") for each in weights()), **biases())
    gate, up, down = weights()
    total = np.zeros_like(x)
    for rank in range(2):
        own = slice(rank * SIZE // 2, (rank + 1) * SIZE // 2)
        parts = (gate[:, own], up[:, own], down[:, :, own])
        matrices = ExpertMatrices(
            *(pack(part, "q8_0") for part in parts),
            gate_bias=biases()["gate_bias"][:, own],
            up_bias=biases()["up_bias"][:, own],
            down_bias=biases()["down_bias"] if rank == 0 else None,
        )
        total += CPU[experts](x, logits, router, kind, matrices)
    np.testing.assert_allclose(total, CPU[experts](x, logits, router, kind, whole), atol=2e-5, rtol=2e-5)


def test_ranks_with_some_of_the_experts_add_up() -> None:
    x, logits = inputs(11)
    whole = Router(EXPERTS, 3, True, 0, EXPERTS)
    everything = ExpertMatrices(*(pack(each, "q8_0") for each in weights()), **biases())
    expected = CPU[experts](x, logits, whole, "silu", everything)
    total = np.zeros_like(x)
    for first, count in ((0, 2), (2, 3)):
        own = ExpertMatrices(
            *(pack(each[first : first + count], "q8_0") for each in weights()),
            **{name: bias[first : first + count] for name, bias in biases().items()},
        )
        total += CPU[experts](x, logits, replace(whole, first=first, count=count), "silu", own)
    np.testing.assert_allclose(total, expected, atol=1e-5, rtol=1e-5)


def test_it_is_captured() -> None:
    x, logits = inputs(23)
    matrices = ExpertMatrices(*(pack(weight, "q8_0") for weight in weights()), **biases())
    router = Router(EXPERTS, 2, True, 0, EXPERTS)
    graph = Graph()
    with graph.capture():
        out = CPU[experts](x, logits, router, "silu", matrices)
    graph.replay(9, 9)
    assert np.array_equal(out[:9], CPU[experts](x[:9], logits[:9], router, "silu", matrices))


def test_what_does_not_fit_is_refused() -> None:
    x, logits = inputs(3)
    gate, up, down = (pack(weight, "float32") for weight in weights())
    good = ExpertMatrices(gate, up, down)
    with pytest.raises(ValueError, match="6 of 5 experts"):
        CPU[experts](x, logits, Router(EXPERTS, 6, True, 0, EXPERTS), "silu", good)
    with pytest.raises(ValueError, match="2 experts in 1 of 3 groups, scored by their 1 best, do not fit 5 experts"):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS, groups=ExpertGroups(3, 1, 1)), "silu", good)
    with pytest.raises(ValueError, match='no scores "argmax": use softmax, sigmoid or sparse_mixer'):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS, scores="argmax"), "silu", good)
    with pytest.raises(ValueError, match="a sparse mixer has neither normalised weights, nor a correction"):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS, scores="sparse_mixer"), "silu", good)
    wrong = np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"correction is of shape \[3\]: it must be of \[5\]"):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS, correction=wrong), "silu", good)
    with pytest.raises(ValueError, match=r"320 outputs are not those of 3 experts, each a multiple of 32"):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, 3), "silu", good)
    with pytest.raises(ValueError, match="an expert's matrix"):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS), "silu", replace(good, down=up))
    with pytest.raises(ValueError, match=r"gate_bias is of shape \[5, 3\]: it must be of \[5, 64\]"):
        CPU[experts](
            x,
            logits,
            Router(EXPERTS, 2, True, 0, EXPERTS),
            "silu",
            replace(good, gate_bias=np.ones((5, 3), np.float32)),
        )
    with pytest.raises(ValueError, match="a bias of the gate or of up alone"):
        CPU[experts](
            x, logits, Router(EXPERTS, 2, True, 0, EXPERTS), "silu", replace(good, up_bias=np.ones((5, 64), np.float32))
        )
    odd = replace(good, down_bias=np.ones((5, 256), numpy_dtype("bfloat16")))
    with pytest.raises(ValueError, match="down_bias is bfloat16: give float32"):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS), "silu", odd)
    short = replace(good, up=replace(up, data=up.data[:-1]))
    with pytest.raises(ValueError, match="packed is of shape"):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS), "silu", short)
    with pytest.raises(ValueError, match=r"logits is of shape \[2, 5\]: it must be of \[3, 5\]"):
        CPU[experts](x, logits[:2], Router(EXPERTS, 2, True, 0, EXPERTS), "silu", good)
    with pytest.raises(ValueError, match='no activation "mish"'):
        CPU[experts](x, logits, Router(EXPERTS, 2, True, 0, EXPERTS), "mish", good)
