"""Checks of the arguments of quantised linears: shapes, dtypes, and the weights that share a scale.

Does not know how they are multiplied; the reference and the Triton kernels both use it.
"""

from pyllm_kernels.matrix_rows import FLOAT_DTYPES
from pyllm_kernels.tensors import Tensor, dtype_name, is_contiguous, strides

_GROUP_UNIT = 32
# The widest row whose sum of int8 products (-128 * 127 each) fits into int32.
_MAX_INT8_FEATURES = (2**31 - 1) // (128 * 127)
FP8_SCALE_UNIT = 64
"""A scale of fp8 is for so many features of a row, for a multiple of them, or for the whole row."""


def w4a16_group_size(x: Tensor, integers: Tensor, scales: Tensor, minimums: Tensor, out: Tensor | None) -> int:
    """The features that share a scale and a minimum; `ValueError` if the arguments of `linear_w4a16` do not fit."""
    _check_matrix("integers", integers, "uint8")
    _check_matrix("scales", scales, "float16")
    _check_matrix("minimums", minimums, "float16")
    out_features, in_features = integers.shape[0], 2 * integers.shape[1]
    _check_input_and_output(x, in_features, out_features, out)
    if minimums.shape != scales.shape:
        raise ValueError(f"minimums are {list(minimums.shape)} and scales {list(scales.shape)}: both need one shape")
    return _group_size(scales, out_features, in_features)


def w8a16_group_size(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None) -> int:
    """The number of features that share a scale; `ValueError` if the arguments of `linear_w8a16` do not fit."""
    _check_matrix("integers", integers, "int8")
    _check_matrix("scales", scales, "float16")
    out_features, in_features = integers.shape
    _check_input_and_output(x, in_features, out_features, out)
    return _group_size(scales, out_features, in_features)


def check_w8a8(x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None) -> None:
    """Raise a `ValueError` if the arguments of `linear_w8a8` do not fit."""
    _check_matrix("integers", integers, "int8")
    out_features, in_features = integers.shape
    _check_input_and_output(x, in_features, out_features, out)
    if dtype_name(scales.dtype) != "float32" or scales.shape != (out_features,) or not is_contiguous(scales):
        raise ValueError(f"scales are {scales.dtype} {list(scales.shape)}: integers take float32 [{out_features}]")
    if not 0 < in_features <= _MAX_INT8_FEATURES:
        raise ValueError(f"integers have {in_features} features: int32 sums are exact for 1 to {_MAX_INT8_FEATURES}")


def fp8_scale_block(
    x: Tensor, weight: Tensor, scales: Tensor, out: Tensor | None, block: tuple[int, int]
) -> tuple[int, int]:
    """The outputs and features that share a scale; `ValueError` if the arguments of `linear_fp8` do not fit."""
    _check_matrix("weight", weight, "float8_e4m3fn")
    _check_matrix("scales", scales, "float32")
    out_features, in_features = weight.shape
    _check_input_and_output(x, in_features, out_features, out)
    block_out, block_in = block
    if block_out < 1 or block_in < FP8_SCALE_UNIT or block_in % FP8_SCALE_UNIT != 0:
        raise ValueError(f"block is {block}: it takes 1 or more outputs and a multiple of {FP8_SCALE_UNIT} features")
    if in_features == 0:
        raise ValueError("weight has no features")
    rows, columns = scales.shape
    outputs_a_scale = {-(-out_features // block_out): block_out, out_features: 1, 1: max(out_features, 1)}
    features_a_scale = {-(-in_features // block_in): block_in, 1: in_features}
    if rows not in outputs_a_scale or columns not in features_a_scale:
        raise ValueError(
            f"scales are {list(scales.shape)}: a weight {list(weight.shape)} takes 1, {-(-out_features // block_out)} "
            f"or {out_features} rows of 1 or {-(-in_features // block_in)}, in blocks of {block_out} x {block_in}"
        )
    return outputs_a_scale[rows], features_a_scale[columns]


def _group_size(scales: Tensor, out_features: int, in_features: int) -> int:
    groups: int = scales.shape[1]
    if scales.shape[0] != out_features or groups == 0 or in_features == 0 or in_features % (groups * _GROUP_UNIT) != 0:
        raise ValueError(
            f"scales are {list(scales.shape)}: integers of {in_features} features take [{out_features}, groups], where "
            f"a group has a multiple of {_GROUP_UNIT} features"
        )
    return in_features // groups


def _check_matrix(name: str, matrix: Tensor, dtype: str) -> None:
    if dtype_name(matrix.dtype) != dtype or matrix.ndim != 2 or not is_contiguous(matrix):
        raise ValueError(
            f"{name} is {matrix.dtype} {list(matrix.shape)} with strides {strides(matrix)}: it takes a contiguous "
            f"matrix of {dtype}"
        )


def _check_input_and_output(x: Tensor, in_features: int, out_features: int, out: Tensor | None) -> None:
    if dtype_name(x.dtype) not in FLOAT_DTYPES or x.ndim != 2 or x.shape[1] != in_features or not is_contiguous(x):
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)} with strides {strides(x)}: the weight takes contiguous float16, bfloat16 "
            f"or float32 [tokens, {in_features}]"
        )
    shape = (x.shape[0], out_features)
    if out is not None and (out.dtype != x.dtype or out.shape != shape or strides(out)[1] != 1):
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)} with strides {strides(out)}: it takes {x.dtype} {list(shape)}, each "
            "row in one piece"
        )
