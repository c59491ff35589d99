"""Requantises numbers to Q8_0 with the gguf package, for formats without a kernel. Knows no file."""

from collections.abc import Iterable

import numpy as np
from pyllm_kernels import MatrixRows
from pyllm_kernels.tensors import Floats


def as_q8_0(chunks: Iterable[Floats]) -> MatrixRows:
    """The rows of all chunks in Q8_0; chunks are float32 [rows, features], 32 features share a float16 scale."""
    import gguf  # Few models need it, and its import takes a third of a second.

    quantised = (gguf.quants.quantize(chunk, gguf.GGMLQuantizationType.Q8_0) for chunk in chunks)
    return MatrixRows.of(np.concatenate(list(quantised)), "q8_0")
