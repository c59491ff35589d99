"""Triton's kernels are interpreted where there is no CUDA device."""

import os

import torch


def interpret() -> None:
    """Choose the interpreter, before any module of a kernel is imported: Triton reads the environment then."""
    if torch.cuda.is_available():
        return
    os.environ["TRITON_INTERPRET"] = "1"
    from pyllm_kernels.interpreter import prepare

    prepare()
