"""Residual streams side by side, against their formulas in float64."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pyllm_kernels import Kernels, select
from pyllm_kernels.graph import Graph
from pyllm_kernels.ops.streams import (
    add_to_streams,
    correct_streams,
    gaussian_top_k,
    join_streams,
    match_magnitudes,
    predict_streams,
)
from pyllm_kernels.tensors import Array, numpy_dtype
from pyllm_kernels.torch_bridge import as_array, as_tensor

from tests.wrapped_kernels import WrappedKernels

COUNT, TOLERANCE = 4, {"float32": 1e-5, "bfloat16": 3e-2, "float16": 5e-3}
DTYPE = pytest.mark.parametrize("dtype", list(TOLERANCE))
BACKEND = pytest.mark.parametrize("backend", ["cpu", "reference", "triton"])
SIZE = pytest.mark.parametrize("size", [1, 24, 100])


def ops(backend: str) -> Kernels:
    """The ops of a backend, for arrays."""
    if backend != "triton":
        return select(backend, "cpu")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return WrappedKernels(select("triton", device), lambda _, version: partial(on_tensors, version, device))


def on_tensors(version: Callable[..., Any], device: str, *arguments: Any) -> Any:
    """Call an op of tensors; its results, and what it changes in place, are arrays."""
    given = [as_tensor(item).to(device) if isinstance(item, np.ndarray) else item for item in arguments]
    result = version(*given)
    if result is given[0]:
        arguments[0][...] = as_array(result)
        return arguments[0]
    return tuple(map(as_array, result)) if isinstance(result, tuple) else as_array(result)


def numbers(seed: int, *shape: int, dtype: str) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


def apart(x: Array) -> Array:
    return x.astype(np.float64).reshape(len(x), COUNT, -1)


def check(found: Array, expected: Array, dtype: str) -> None:
    assert found.dtype == numpy_dtype(dtype)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@DTYPE
@BACKEND
@SIZE
def test_each_stream_is_predicted_from_all(backend: str, size: int, dtype: str) -> None:
    x, factors = numbers(0, 3, COUNT * size, dtype=dtype), numbers(1, 3, COUNT * COUNT, dtype=dtype)
    streams, matrices = apart(x), apart(factors)
    expected = [
        [s[i] + sum(m[i, j] * s[j] for j in range(COUNT)) for i in range(COUNT)]
        for s, m in zip(streams, matrices, strict=True)
    ]
    check(ops(backend)[predict_streams](x, factors), np.reshape(expected, x.shape), dtype)


@DTYPE
@BACKEND
@SIZE
@pytest.mark.parametrize("active", [0, 2])
def test_streams_are_corrected_by_the_active_one(backend: str, size: int, dtype: str, active: int) -> None:
    x, activated = numbers(0, 3, COUNT * size, dtype=dtype), numbers(1, 3, size, dtype=dtype)
    factors, scale = numbers(2, 3, COUNT, dtype=dtype), numbers(3, size, dtype=dtype)
    streams, difference = apart(x), activated.astype(np.float64) - apart(x)[:, active]
    expected = streams + (1 + factors.astype(np.float64))[:, :, None] * difference[:, None]
    found, scaled = ops(backend)[correct_streams](x, activated, factors, active, scale)
    check(found, expected.reshape(x.shape), dtype)
    check(scaled, expected[:, active] * scale.astype(np.float64), dtype)


@DTYPE
@BACKEND
@SIZE
def test_additions_and_magnitudes_are_in_place(backend: str, size: int, dtype: str) -> None:
    wide, other = numbers(0, 3, size + COUNT * size, dtype=dtype), numbers(1, 3, size, dtype=dtype)
    kernels, before, x = ops(backend), wide.copy(), wide[:, size:]
    expected = apart(x) + other.astype(np.float64)[:, None]
    assert kernels[add_to_streams](x, other) is x
    check(x, expected.reshape(x.shape), dtype)
    x[:, :size] = 0  # of no magnitude
    streams, like = apart(x), np.square(other.astype(np.float64)).mean(-1)
    factors = np.sqrt(like[:, None] / np.maximum(np.square(streams).mean(-1), 1e-5))
    kernels[match_magnitudes](x, other)
    check(x, (streams * factors[:, :, None]).reshape(x.shape), dtype)
    np.testing.assert_array_equal(wide[:, :size], before[:, :size])


@DTYPE
@BACKEND
@pytest.mark.parametrize("size", [1, 37, 1000])
def test_only_numbers_far_above_the_mean_stay(backend: str, size: int, dtype: str) -> None:
    wide = 3 * numbers(0, 3, size + 5, dtype=dtype) + np.ones((), numpy_dtype(dtype))
    x, before = wide[:, 5:], wide.copy()
    exact = x.astype(np.float64)
    cutoff = exact.mean(-1, keepdims=True) + 0.5 * exact.std(-1, keepdims=True)
    ops(backend)[gaussian_top_k](x, 0.5)
    check(x, np.maximum(exact - cutoff, 0), dtype)
    np.testing.assert_array_equal(wide[:, :5], before[:, :5])


@DTYPE
@BACKEND
def test_streams_are_joined(backend: str, dtype: str) -> None:
    wide = numbers(0, 3, 7 + 24, dtype=dtype)
    joined = ops(backend)[join_streams](wide[:, 2:7], wide[:, 7:])
    np.testing.assert_array_equal(joined, wide[:, 2:])


def test_mismatched_shapes_are_refused() -> None:
    kernels, x = select("cpu", "cpu"), np.zeros((2, 12), np.float32)
    with pytest.raises(ValueError, match="12 features are not those of 5 streams"):
        kernels[predict_streams](x, np.zeros((2, 25), np.float32))
    with pytest.raises(ValueError, match="stream 4 is active, of 4"):
        kernels[correct_streams](x, x[:, :3], x[:, :4], 4, x[0, :3])
    with pytest.raises(ValueError, match=re.escape("activated is of shape [1, 3]: it must be of [2, 3]")):
        kernels[correct_streams](x, x[:1, :3], x[:, :4], 0, x[0, :3])
    with pytest.raises(ValueError, match=re.escape("activated is of shape [2, 2]: it must be of [2, 3]")):
        kernels[correct_streams](x, x[:, :2], x[:, :4], 0, x[0, :3])
    with pytest.raises(ValueError, match=re.escape("other is of shape [1, 3]: it must be of [2, 3]")):
        kernels[add_to_streams](x, x[:1, :3])
    with pytest.raises(ValueError, match="12 features are not those of streams of 5"):
        kernels[add_to_streams](x, x[:, :5])


def test_a_graph_holds_them() -> None:
    kernels, graph, x = select("cpu", "cpu"), Graph(), np.ones((2, 8), np.float32)
    with graph.capture():
        joined = kernels[join_streams](x[:, :2], x[:, 2:])
        out = kernels[add_to_streams](kernels[predict_streams](joined, np.ones((2, 16), np.float32)), x[:, :2])
    graph.replay(2, 0)
    np.testing.assert_array_equal(out, np.full((2, 8), 6, np.float32))
