"""Triton's interpreter: its products in a fixed order, and less work at each call. Knows no kernel."""

import functools
from typing import Any

import numpy as np


@functools.cache
def prepare() -> None:
    """Change the interpreter in the whole process, once."""
    _order_products()
    _replace_once()


def _order_products() -> None:
    """Make the interpreter's `tl.dot` add in the order of k, in the whole process.

    Triton multiplies with NumPy, whose BLAS may add a row's products in another order if there are more rows: on CPUs
    with AVX2 it does. Then no kernel could give a row the same result alone and among others.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    InterpreterBuilder.create_dot = _create_dot


def _replace_once() -> None:
    """Make the interpreter faster.

    At every call of a device function it looks through all of `triton.language` for what to replace by its own
    functions, a third of a kernel's time. Here the names are found once, and functions that a kernel calls find them
    replaced; what is replaced while a kernel runs is the same.
    """
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    insides = "_LangPatchScope", "_patch_lang", "_patch_builtin", "_patch_attr", "_get_np_dtype"
    if not all(hasattr(interpreter, name) for name in insides):  # another version of Triton
        return

    @functools.cache
    def names_in(place: Any) -> list[str]:
        return [name for name in dir(place) if core.is_builtin(getattr(place, name))]

    for place in (language, core, core.tensor, language.math):
        names_in(place)  # before any is replaced

    def patch_builtin(place: Any, builder: Any, *scope: Any) -> None:
        for name in names_in(place):
            if core.is_builtin(member := getattr(place, name)):  # not replaced yet
                interpreter._patch_attr(place, name, member, builder, *scope)

    original_dtype = interpreter._get_np_dtype  # It makes a table of all types, for each operand of each operation.
    scalar_dtype = functools.cache(original_dtype)
    original_patch = interpreter._patch_lang
    replaced: set[str] = set()  # the modules of functions whose names are replaced while a kernel runs

    def patch_lang(function: Any) -> Any:
        if function.__module__ in replaced:
            return interpreter._LangPatchScope()
        scope = original_patch(function)
        restore = scope.restore

        def end() -> None:  # Called for kernels alone.
            replaced.clear()
            restore()

        scope.restore = end
        replaced.add(function.__module__)
        return scope

    interpreter._patch_builtin = patch_builtin
    interpreter._patch_lang = patch_lang
    interpreter._get_np_dtype = lambda dtype: (
        scalar_dtype(dtype.scalar) if type(dtype.scalar) is core.dtype else original_dtype(dtype)
    )


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
