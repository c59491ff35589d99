"""Each level of instructions that this processor has, in a process of its own."""

import subprocess
import sys

import pyllm_kernels
import pytest

from pyllm.machine.cpu_features import instructions
from pyllm.machine.processor import kernel_levels

# Random bytes, of which each format makes blocks. Scales may be no numbers, of which there are many forms; 255, MXFP4's
# exponent of NaN, is refused when a file is read.
PRODUCTS = """
import hashlib, sys
import numpy as np
from pyllm_kernels import GGUF_BLOCKS, LinearLayout, MatrixRows, instruction_set, use_instruction_set

use_instruction_set(sys.argv[1])
random, digest = np.random.default_rng(0), hashlib.sha256()
for name, (features, size) in {**GGUF_BLOCKS, "int8": (1, 1)}.items():
    blocks = random.integers(0, 255, (70, 512 // features * size), np.uint8)
    rows = MatrixRows.of(blocks, name) if name != "int8" else MatrixRows.of(blocks.astype(np.float32))
    linear = LinearLayout(name, "float32", 512, 70)
    packed = np.zeros(linear.packed_bytes, np.uint8)
    linear.pack([rows], packed)
    for count in (1, 2, 3, 4, 37):
        out = np.empty((count, 70), np.float32)
        linear.run(random.standard_normal((count, 512), np.float32), packed, out)
        assert np.isfinite(out).any(), name
        digest.update(np.where(np.isnan(out), np.float32(np.nan), out))
print(instruction_set(), digest.hexdigest())
"""


def test_products_of_integers_are_the_same_in_all() -> None:
    levels = kernel_levels(instructions())
    commands = [[sys.executable, "-c", PRODUCTS, level] for level in levels]
    printed = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout for command in commands]
    used, digests = zip(*map(str.split, printed), strict=True)
    assert list(used) == levels
    assert len(set(digests)) == 1, dict(zip(levels, digests, strict=True))


def test_a_process_computes_with_one() -> None:
    used = pyllm_kernels.instruction_set()
    pyllm_kernels.use_instruction_set(used)
    with pytest.raises(ValueError, match="this processor lacks mmx: choose from portable"):
        pyllm_kernels.use_instruction_set("mmx")
    for other in {*kernel_levels(instructions())} - {used}:
        with pytest.raises(ValueError, match=f"this process uses {used} already"):
            pyllm_kernels.use_instruction_set(other)
