"""Weights in memory: rounded to the dtype of a parameter, and refused where they are not finite."""

import numpy as np
import pytest
from pyllm_kernels.tensors import numpy_dtype

from pyllm.errors import ConfigError
from pyllm.workers.loaders.weights import check_finite, fill_finite


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_not_finite_is_refused_whatever_its_sign_and_bits(dtype: str) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(dtype))
    is_finite = np.isfinite(numbers.astype(np.float32))
    check_finite("weight", numbers[is_finite])
    for number in numbers[~is_finite]:
        with pytest.raises(ConfigError, match="parameter 'weight' has a NaN or an infinity"):
            check_finite("weight", np.array([1, number, -2], numbers.dtype))


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_floats_and_columns_of_a_matrix_are_checked(dtype: str, number: float) -> None:
    numbers = -np.ones((4, 6), dtype)
    numbers[2, 3] = number
    check_finite("weight", numbers[:, ::2])
    check_finite("weight", numbers[:0])
    with pytest.raises(ConfigError, match="has a NaN or an infinity"):
        check_finite("weight", numbers[:, 1::2])


def test_numbers_are_rounded_to_the_nearest_and_those_that_become_infinite_are_refused() -> None:
    out = np.zeros(3, numpy_dtype("bfloat16"))
    fill_finite("weight", out, np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-7 + 2**-20)], np.float32))
    assert out.tolist() == [1, 1 + 2**-6, -(1 + 2**-7)]  # halves to even
    half = np.zeros(2, np.float16)
    fill_finite("weight", half, np.array([65519, -65519], np.float32))
    assert half.tolist() == [65504, -65504]
    for number in (65520, -65520):
        with pytest.raises(ConfigError, match="has a NaN or an infinity"):
            fill_finite("weight", half, np.array([0, number], np.float32))
