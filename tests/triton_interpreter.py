"""Triton's kernels are interpreted where there is no CUDA device."""

import functools
import os
from typing import Any

import torch


def interpret() -> None:
    """Choose the interpreter, before any module of a kernel is imported: Triton reads the environment then."""
    if torch.cuda.is_available():
        return
    os.environ["TRITON_INTERPRET"] = "1"
    from pyllm_kernels.interpreter import order_products

    order_products()
    _replace_once()


def _replace_once() -> None:
    """Make the interpreter faster, in the whole process.

    At every call of a device function it looks through all of `triton.language` for what to replace by its own
    functions, a third of a kernel's time. Here the names are found once, and functions that a kernel calls find them
    replaced; what is replaced while a kernel runs is the same.
    """
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    places = (language, core, core.tensor, language.math, core.tensor_descriptor_base)
    names = {place: [name for name in dir(place) if core.is_builtin(getattr(place, name))] for place in places}

    def patch_builtin(place: Any, builder: Any, *scope: Any) -> None:
        for name in names[place]:
            if core.is_builtin(member := getattr(place, name)):  # not replaced yet
                interpreter._patch_attr(place, name, member, builder, *scope)

    whole = interpreter._get_np_dtype  # It makes a table of all types, for each operand of each operation.
    find = functools.cache(whole)
    replace = interpreter._patch_lang
    replaced: set[str] = set()  # the modules of functions whose names are replaced while a kernel runs

    def patch_lang(function: Any) -> Any:
        if function.__module__ in replaced:
            return interpreter._LangPatchScope()
        scope = replace(function)
        restore = scope.restore

        def end() -> None:  # Called for kernels alone.
            replaced.clear()
            restore()

        scope.restore = end
        replaced.add(function.__module__)
        return scope

    interpreter._patch_builtin = patch_builtin
    interpreter._patch_lang = patch_lang
    interpreter._get_np_dtype = lambda kind: find(kind.scalar) if type(kind.scalar) is core.dtype else whole(kind)
