"""The products of heads with their own matrices, against their reference; and that a graph holds them."""

import numpy as np
import pytest
from pyllm_kernels import Graph, Kernels, PackedLinear
from pyllm_kernels.ops.head_products import head_products
from pyllm_kernels.ops.packed_linear import pack_linear
from pyllm_kernels.tensors import Array

from tests.kernels.recurrent_ops import CPU, DTYPES, REFERENCE, close, normal, same, threads

TOKENS = 9
SIZES = [(1, 0, 1, 32), (3, 8, 12, 64), (16, 64, 128, 512), (5, 6, 33, 96)]  # heads, first, in_features, out_features


def matrices(kernels: Kernels, heads: int, inputs: int, outputs: int, dtype: str = "float32") -> PackedLinear:
    weights = normal(heads * outputs, inputs, dtype=dtype, seed=2) * normal(1, dtype=dtype)
    return kernels[pack_linear](np.ascontiguousarray(weights / np.sqrt(inputs)).astype(weights.dtype))


def heads_of(tokens: int, heads: int, size: int, dtype: str = "float32") -> Array:
    """Heads in some columns of a wider matrix, as an op gets a part of a projection."""
    return normal(tokens, heads * size + 7, dtype=dtype)[:, 3 : 3 + heads * size].reshape(tokens, heads, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("heads", "first", "inputs", "outputs"), SIZES)
def test_of_any_shape(heads: int, first: int, inputs: int, outputs: int, keep: bool, dtype: str) -> None:
    x = heads_of(TOKENS, heads, first + inputs, dtype)
    packed = matrices(CPU, heads, inputs, outputs, dtype)
    ours = CPU[head_products](x, packed, keep)
    assert ours.dtype == x.dtype
    close(ours, REFERENCE[head_products](x, matrices(REFERENCE, heads, inputs, outputs, dtype), keep), dtype)
    if keep:
        assert same(ours[..., :first], x[..., :first])
    for token in range(TOKENS):
        assert same(CPU[head_products](x[token : token + 1], packed, keep), ours[token : token + 1])


def test_any_threads_give_the_same_and_a_graph_holds_it() -> None:
    x, packed, graph = heads_of(400, 4, 80), matrices(CPU, 4, 64, 96), Graph()
    expected = CPU[head_products](x, packed, True)
    for count in (2, 3):
        with threads(count):
            assert same(CPU[head_products](x, packed, True), expected)
    with graph.capture():
        output = CPU[head_products](x, packed, True)
    graph.replay(250, 0)
    assert same(output[:250], expected[:250])


def test_what_does_not_fit_is_refused() -> None:
    x = heads_of(2, 3, 20)
    with pytest.raises(ValueError, match="90 outputs of float32 are not those of 3 heads: give floats, and each"):
        CPU[head_products](x, matrices(CPU, 3, 16, 30), True)
    with pytest.raises(ValueError, match="heads of 20 numbers, and matrices that take 24"):
        CPU[head_products](x, matrices(CPU, 3, 24, 32), False)
