"""The gated norms, and the gate alone, against their reference and transformers' layers; and in a graph."""

import numpy as np
import pytest
import torch
from pyllm_kernels import Graph, Kernels
from pyllm_kernels.ops.elementwise import sigmoid_gate, silu_gate
from pyllm_kernels.ops.gated_norm import gated_norm
from pyllm_kernels.tensors import Array, numpy_dtype
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNormGated
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from tests.kernels.recurrent_ops import CPU, DTYPES, REFERENCE, as_torch, close, columns, normal, same, threads

EPSILON = 1e-5
SHAPES = [(1, 1), (96, 96), (96, 32), (130, 13), (4096, 128), (1000, 1000)]  # features, group_size


def weight_of(size: int, dtype: str = "float32") -> Array:
    return (normal(size, seed=2) + 1).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("features", "group_size"), SHAPES)
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("wide_weight", [False, True])
def test_of_any_shape(
    features: int, group_size: int, dtype: str, gate_first: bool, shared: bool, wide_weight: bool
) -> None:
    x, gate = columns(5, features, dtype=dtype), columns(5, features, dtype=dtype, seed=1)
    weight = weight_of(group_size if shared else features, "float32" if wide_weight else dtype)
    arguments = x, gate, weight, EPSILON, group_size, gate_first
    ours = CPU[gated_norm](*arguments)
    assert ours.dtype == x.dtype
    close(ours, REFERENCE[gated_norm](*arguments), dtype)
    for row in range(5):
        alone = CPU[gated_norm](x[row : row + 1], gate[row : row + 1], *arguments[2:])
        assert same(alone, ours[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_threads_give_the_same_and_a_graph_holds_it(dtype: str) -> None:
    x, gate, weight = normal(200, 512, dtype=dtype), normal(200, 512, dtype=dtype, seed=1), weight_of(64)
    arguments, graph = (weight, EPSILON, 64, False), Graph()
    expected, gated = CPU[gated_norm](x, gate, *arguments), CPU[sigmoid_gate](x.copy(), gate)
    for count in (2, 3):
        with threads(count):
            assert same(CPU[gated_norm](x, gate, *arguments), expected)
            assert same(CPU[sigmoid_gate](x.copy(), gate), gated)
    with graph.capture():
        outputs = CPU[gated_norm](x, gate, *arguments), CPU[sigmoid_gate](x, gate)
    graph.replay(150, 0)
    assert same(outputs[0][:150], expected[:150])
    assert same(outputs[1][:150], gated[:150])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 96, 130, 1000])
def test_a_gate_without_a_norm(features: int, dtype: str) -> None:
    x, gate = columns(5, features, dtype=dtype), columns(5, features, dtype=dtype, seed=1)
    expected = REFERENCE[silu_gate](x.copy(), gate)
    assert CPU[silu_gate](x, gate) is x
    close(x, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("features", "group_size"), [(1, 1), (96, 32), (130, 13)])
@pytest.mark.parametrize(("gate_first", "function"), [(True, "silu"), (False, "silu"), (False, "sigmoid")])
@pytest.mark.parametrize("shared", [False, True])
def test_triton_computes_it(
    features: int,
    group_size: int,
    gate_first: bool,
    function: str,
    shared: bool,
    dtype: str,
    arrays_in_triton: Kernels,
) -> None:
    x, gate = columns(5, features, dtype=dtype), columns(5, features, dtype=dtype, seed=1)
    weight = weight_of(group_size if shared else features)
    arguments = x, gate, weight, EPSILON, group_size, gate_first, function
    close(arrays_in_triton[gated_norm](*arguments), REFERENCE[gated_norm](*arguments), dtype)
    expected = REFERENCE[silu_gate](x.copy(), gate)
    close(arrays_in_triton[silu_gate](x.copy(), gate), expected, dtype)


@pytest.mark.parametrize("group_size", [0, 7])
def test_groups_must_divide_the_features(group_size: int) -> None:
    x = normal(2, 16)
    with pytest.raises(ValueError, match=f"16 features in groups of {group_size}: give a divisor"):
        CPU[gated_norm](x, x, np.ones(16, np.float32), EPSILON, group_size, True)


def test_an_unknown_function_is_refused() -> None:
    x = normal(2, 16)
    with pytest.raises(ValueError, match='no function "gelu" of a gate: use silu or sigmoid'):
        CPU[gated_norm](x, x, np.ones(16, np.float32), EPSILON, 16, True, "gelu")


@torch.no_grad()
def test_it_is_that_of_mamba_2_of_qwen_and_of_kimi() -> None:
    x, gate, weight = normal(3, 96), normal(3, 96, seed=1), weight_of(96)
    grouped, of_heads = MambaRMSNormGated(96, 32, EPSILON), Qwen3NextRMSNormGated(32, EPSILON)
    grouped.weight.copy_(as_torch(weight))
    of_heads.weight.copy_(as_torch(weight[:32]))
    of_kimi = KimiLinearRMSNormGated(32, EPSILON)
    of_kimi.weight.copy_(as_torch(weight[:32]))
    close(CPU[gated_norm](x, gate, weight, EPSILON, 32, True), grouped(as_torch(x), as_torch(gate)))
    heads = [as_torch(array).reshape(-1, 32) for array in (x, gate)]
    close(CPU[gated_norm](x, gate, weight[:32], EPSILON, 32, False), of_heads(*heads).reshape(3, 96))
    ours = CPU[gated_norm](x, gate, weight[:32], EPSILON, 32, False, "sigmoid")
    close(ours, of_kimi(*heads).reshape(3, 96))
    close(ours, REFERENCE[gated_norm](x, gate, weight[:32], EPSILON, 32, False, "sigmoid"))
