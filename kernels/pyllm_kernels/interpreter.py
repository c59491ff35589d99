"""Triton's interpreter as the kernels need it: products in a fixed order, and names that are looked up once.

It knows no kernel. It changes Triton's own module, for the whole process.
"""

from typing import Any

import numpy as np


def adapt_interpreter() -> None:
    """Make the interpreter's `tl.dot` add in the order of k, and its calls faster. Calling it again changes nothing.

    Triton multiplies with NumPy, whose BLAS may add a row's products in another order when there are more rows: on CPUs
    with AVX2 it does. No kernel could then give the same row alone and among others.

    At every call of a device function Triton looks through all of `triton.language` for what to replace by its own
    functions, a quarter of a kernel's time. Here the names are found once; what is replaced, and when, is the same.
    """
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    if interpreter.InterpreterBuilder.create_dot is _create_dot:
        return
    interpreter.InterpreterBuilder.create_dot = _create_dot
    places = (language, core, core.tensor, language.math, core.tensor_descriptor_base)
    names = {place: [name for name in dir(place) if core.is_builtin(getattr(place, name))] for place in places}

    def patch_builtin(place: Any, builder: Any, *scope: Any) -> None:
        for name in names[place]:
            if core.is_builtin(member := getattr(place, name)):  # not replaced yet
                interpreter._patch_attr(place, name, member, builder, *scope)

    interpreter._patch_builtin = patch_builtin


def _create_dot(builder: Any, a: Any, b: Any, total: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """`total + a @ b`, one k after the other. Shapes: a `[..., m, k]`, b `[..., k, n]`, total `[..., m, n]`."""
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
    """An operand's values; NumPy has no type for those of 8 bits with a point, so they become float16."""
    from triton import language
    from triton.runtime.interpreter import _convert_float

    if operand.dtype.primitive_bitwidth == 8 and operand.dtype.is_floating():
        return _convert_float(operand.data, operand.dtype, language.float16, None).view(np.float16)
    return operand.data
