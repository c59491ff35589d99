"""The types of tensors in GGUF files: their numbers, names, and blocks. Knows no file.

From `ggml.h` and `ggml-common.h` of https://github.com/ggml-org/ggml.
"""

from typing import NamedTuple


class TensorType(NamedTuple):
    """A type of tensors: each row consists of blocks of `block_elements` elements in `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}

FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})
WITH_KERNELS = frozenset(
    {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
    | {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}
)
"""Those that a CPU multiplies as they are (`GGUF_BLOCKS` of `pyllm_kernels`)."""
REQUANTISED_TYPES = {"TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "NVFP4": "Q8_0"}
"""Those that the gguf package reads as floats, and the types that these become: without a loss, but for NVFP4."""
BLOCK_SIZES = {kind.name: kind.block_elements for kind in TENSOR_TYPES.values()}
BLOCK_BYTES = {kind.name: kind.block_bytes for kind in TENSOR_TYPES.values()}
