"""The GPU benchmarks' logic runs without a GPU: kernels in Triton's interpreter, times from a fake timer."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when a kernel's module is first imported.
