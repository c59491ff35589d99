"""Triton's kernels are interpreted where there is no CUDA device."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when a kernel's module is first imported.
