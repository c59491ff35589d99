"""The arrays that Rust takes: it refuses memory that it would misread, and names the argument."""

import re
from typing import Any

import numpy as np
import pytest
from pyllm_kernels import AttentionLayer, AttentionMetadata, QKNorm, select
from pyllm_kernels.ops.activation import activation
from pyllm_kernels.ops.elementwise import add, add_bias
from pyllm_kernels.ops.norm import add_rms_norm, layer_norm, rms_norm
from pyllm_kernels.ops.paged_attention import paged_attention
from pyllm_kernels.ops.rope_and_kv_write import rope_and_kv_write
from pyllm_kernels.tensors import Array, numpy_dtype

KERNELS = select("cpu", "cpu")
X = np.ones((4, 8), np.float32)
FIELDS = np.ones((4, 8), [("skipped", "<u2"), ("number", "<f4")])["number"]  # numbers that are 6 bytes apart
MISALIGNED = np.zeros(4 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_may_lie_apart_and_no_rows_in_any_way(dtype: str) -> None:
    wide = np.arange(60).reshape(4, 15).astype(numpy_dtype(dtype))
    rows = wide[:, 3:11]
    assert np.array_equal(KERNELS[add](rows, rows), rows + rows)
    assert np.array_equal(KERNELS[add](rows[::2], rows[1::2]), rows[::2] + rows[1::2])
    for nothing in (rows[:0], wide.T[:, :0].T[:, :8], np.lib.stride_tricks.as_strided(wide, (0, 8), (0, 0))):
        assert KERNELS[activation](nothing, "silu").shape == (0, 4)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (FIELDS, "x has elements at addresses that do not suit float32: copy it"),
        (MISALIGNED, "x has elements at addresses that do not suit float32: copy it"),
        (X[:, ::-1], "x is of shape [4, 8] with strides [8, -1]: give contiguous rows that do not overlap"),
        (X[::-1], "x is of shape [4, 8] with strides [-8, 1]: give contiguous rows that do not overlap"),
        (np.broadcast_to(X[0], (4, 8)), "x is of shape [4, 8] with strides [0, 1]: give contiguous rows"),
        (X.T[:4], "strides [1, 8]: give contiguous rows that do not overlap"),
    ],
)
def test_rows_that_would_be_misread_are_refused(x: Array, message: str) -> None:
    assert KERNELS[add](X, X).tolist() == (X + X).tolist()
    with pytest.raises(ValueError, match=re.escape(message)):
        KERNELS[activation](x, "silu")


def test_other_numbers_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="residual is float64: give float32"):
        KERNELS[add](X, X.astype(np.float64))
    with pytest.raises(ValueError, match="residual is >f4: give float32"):
        KERNELS[add](X, X.astype(">f4"))
    with pytest.raises(ValueError, match="residual is bfloat16: give float32"):
        KERNELS[add](X, X.astype(numpy_dtype("bfloat16")))
    with pytest.raises(TypeError, match="list is no array\nwhile processing 'residual'"):
        KERNELS[add](X, X.tolist())
    with pytest.raises(ValueError, match=re.escape("x is of shape [8]: give 2 dimensions")):
        KERNELS[add](X[0], X[0])
    with pytest.raises(ValueError, match="a weight of 5 features does not divide x's 8"):
        KERNELS[rms_norm](X, X[0, :5], 1e-5)
    with pytest.raises(ValueError, match=re.escape("weight is of shape [4]: it must be of [8]")):
        KERNELS[layer_norm](X, X[0, :4], 1e-5)
    with pytest.raises(ValueError, match=re.escape("weight is of shape [4]: it must be of [8]")):
        KERNELS[add_rms_norm](X, X, X[0, :4], 1e-5)
    with pytest.raises(ValueError, match=re.escape("weight is of shape [2, 8]: it must be of [2]")):
        KERNELS[rms_norm](X, X[:2], 1e-5)
    with pytest.raises(ValueError, match=re.escape("bias is of shape [4] with strides [2]: give a contiguous array")):
        KERNELS[add_bias](X[:, :4], X[0, ::2])


def test_fields_of_dataclasses_are_refused_by_name() -> None:
    heads, cache, ints = X.reshape(4, 1, 8), np.zeros((1, 4, 1, 8), np.float32), np.zeros(4, np.int32)
    fields: dict[str, Any] = {"block_tables": ints[:1, None], "slots": ints[:1], "query_starts": ints[:2]}
    metadata = AttentionMetadata(
        **fields, sequence_lengths=[4], max_query_length=1, max_sequence_length=4, num_tokens=4
    )
    with pytest.raises(TypeError, match="sequence_lengths"):
        KERNELS[paged_attention](heads, cache, cache, metadata, AttentionLayer(1.0))
    norm = QKNorm(X[0], X[0, :4], 1e-5)
    with pytest.raises(ValueError, match=re.escape("a norm's weight is of shape [4]: it must be of [8]")):
        KERNELS[rope_and_kv_write](heads, heads, heads, ints, np.ones((1, 8), np.float32), ints, cache, cache, norm)
