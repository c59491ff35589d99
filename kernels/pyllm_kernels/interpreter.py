"""Products in Triton's interpreter, in a fixed order. Knows no kernel."""

from typing import Any

import numpy as np


def order_products() -> None:
    """Make the interpreter's `tl.dot` add in the order of k, in the whole process.

    Triton multiplies with NumPy, whose BLAS may add a row's products in another order if there are more rows: on CPUs
    with AVX2 it does. Then no kernel could give a row the same result alone and among others.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    InterpreterBuilder.create_dot = _create_dot


def _create_dot(builder: Any, a: Any, b: Any, total: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """`total + a @ b`, added in the order of k. Shapes: a `[..., m, k]`, b `[..., k, n]`, total `[..., m, n]`."""
    from triton.runtime.interpreter import TensorHandle

    dtype = total.data.dtype
    rows, columns = (_numbers(operand).astype(dtype, copy=False) for operand in (a, b))
    result = total.data.copy()
    product = np.empty_like(result)
    for k in range(rows.shape[-1]):
        np.multiply(rows[..., k, None], columns[..., k, None, :], out=product)
        result += product
    return TensorHandle(result, total.dtype.scalar)


def _numbers(operand: Any) -> Any:
    """An operand's values; NumPy has no 8-bit floats, so they become float16."""
    from triton import language
    from triton.runtime.interpreter import _convert_float

    if operand.dtype.primitive_bitwidth == 8 and operand.dtype.is_floating():
        return _convert_float(operand.data, operand.dtype, language.float16, None).view(np.float16)
    return operand.data
