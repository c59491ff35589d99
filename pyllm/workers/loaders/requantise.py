"""Requantises numbers to 8 or 4 bits, for formats without a kernel. Knows no file."""

from collections.abc import Iterable

import numpy as np
from pyllm_kernels import GGUF_BLOCKS, MatrixRows
from pyllm_kernels.tensors import Array, Floats


def as_q8_0(chunks: Iterable[Floats]) -> MatrixRows:
    """The rows of all chunks in Q8_0; chunks are float32 [rows, features], 32 features share a float16 scale."""
    import gguf  # Few models need it, and its import takes a third of a second.

    quantised = (gguf.quants.quantize(chunk, gguf.GGMLQuantizationType.Q8_0) for chunk in chunks)
    return MatrixRows.of(np.concatenate(list(quantised)), "q8_0")


def ternary_as_q4_0(chunks: Iterable[Floats]) -> MatrixRows:
    """The rows of all chunks in Q4_0, exactly: of 32 features, each is 0, or plus or minus one float16."""
    return MatrixRows.of(np.concatenate([_ternary_blocks(chunk) for chunk in chunks]), "q4_0")


def _ternary_blocks(numbers: Floats) -> Array:
    features, size = GGUF_BLOCKS["q4_0"]
    groups = numbers.reshape(len(numbers), -1, features)
    blocks = np.empty((*groups.shape[:2], size), np.uint8)
    with np.errstate(invalid="ignore"):  # A scale that is no number is refused by those who pack the blocks.
        lows, highs = np.split((np.sign(groups) + 8).astype(np.uint8), 2, axis=-1)
    blocks[..., :2] = np.abs(groups).max(-1, keepdims=True).astype(np.float16).view(np.uint8)
    blocks[..., 2:] = lows | highs << 4
    return blocks.reshape(len(numbers), -1)
