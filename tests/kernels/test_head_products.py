"""The products of heads with their own matrices, against their reference; and that a graph holds them."""

import numpy as np
import pytest
import torch
from pyllm_kernels import Graph, Kernels, PackedLinear, batch_invariant, select
from pyllm_kernels.ops.head_products import head_products
from pyllm_kernels.ops.packed_linear import pack_linear
from pyllm_kernels.tensors import Array
from pyllm_kernels.torch_bridge import as_array, as_tensor

from tests.kernels.recurrent_ops import CPU, DTYPES, REFERENCE, close, normal, same, threads

TOKENS = 9
SIZES = [(1, 0, 1, 32), (3, 8, 12, 64), (16, 64, 128, 512), (5, 6, 33, 96)]  # heads, first, in_features, out_features


@pytest.fixture(scope="module")
def triton() -> Kernels:
    return select("triton", "cuda" if torch.cuda.is_available() else "cpu")


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


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("heads", "first", "inputs", "outputs"), [(3, 8, 12, 64), (5, 6, 33, 96), (2, 0, 130, 100)])
@pytest.mark.parametrize("tokens", [3, 70])
def test_in_triton(
    triton: Kernels, tokens: int, heads: int, first: int, inputs: int, outputs: int, keep: bool, dtype: str
) -> None:
    x, own = heads_of(tokens, heads, first + inputs, dtype), matrices(REFERENCE, heads, inputs, outputs, dtype)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    packed, wide = own.moved(lambda array: as_tensor(array).to(device)), as_tensor(x).to(device)
    for some in (triton, batch_invariant(triton)):
        products = some[head_products](wide, packed, keep)
        close(as_array(products), REFERENCE[head_products](x, own, keep), dtype)
        assert torch.equal(products[..., : first * keep], wide[..., : first * keep])
    for start, end in ((0, 1), (1, 3)):  # `products` are those of the invariant kernels.
        assert torch.equal(some[head_products](wide[start:end], packed, keep), products[start:end])


def test_triton_refuses_what_does_not_fit(triton: Kernels) -> None:
    packed = PackedLinear(torch.zeros(6, 4), "float32", "float32", None)
    with pytest.raises(ValueError, match=r"matrices of heads are float32, and x is torch\.float16"):
        triton[head_products](torch.zeros(2, 3, 4, dtype=torch.float16), packed, False)
    for x in (torch.zeros(2, 4, 4), torch.zeros(2, 3, 2), torch.zeros(2, 3, 8)[..., :4]):
        with pytest.raises(ValueError, match="6 outputs of 4 features take contiguous heads"):
            triton[head_products](x, packed, False)


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
