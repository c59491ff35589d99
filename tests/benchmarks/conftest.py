"""The GPU benchmarks' logic runs without a GPU: kernels in Triton's interpreter, times from a fake timer."""

from tests.triton_interpreter import interpret

interpret()
