"""Triton's kernels are interpreted where there is no CUDA device."""

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
    _find_names_once()


def _find_names_once() -> None:
    """Make the interpreter faster, in the whole process.

    At every call of a device function it looks through all of `triton.language` for what to replace by its own
    functions, a quarter of a kernel's time. Here the names are found once; what is replaced, and when, is the same.
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

    interpreter._patch_builtin = patch_builtin
