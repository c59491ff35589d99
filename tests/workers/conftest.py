"""Triton's kernels are interpreted where there is no CUDA device."""

from tests.triton_interpreter import interpret

interpret()
