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


# An odd shape of each op with states; the levels with fused instructions give the same bits.
RECURRENCES = """
import hashlib, sys
import numpy as np
from pyllm_kernels import StateRows, instruction_set, select, use_instruction_set
from pyllm_kernels.ops.causal_convolution import causal_convolution, gated_convolution
from pyllm_kernels.ops.gated_delta_rule import gated_delta_rule
from pyllm_kernels.ops.gated_norm import gated_norm
from pyllm_kernels.ops.state_space import selective_scan, state_space

use_instruction_set(sys.argv[1])
random, digest = np.random.default_rng(0), hashlib.sha256()

def normal(*shape):
    return random.standard_normal(shape, np.float32)

rows = StateRows(*(np.array(numbers, np.int32) for numbers in ([0, 40, 41], [-1, 0], [0, 1])))
for op, arguments, shape, others in (
    (causal_convolution, (normal(41, 141), normal(141, 4), normal(141)), (3, 141), ()),
    (gated_convolution, (normal(41, 423), normal(141, 3), None), (2, 141), ()),
    (gated_delta_rule, (normal(41, 400), normal(41, 2), normal(41, 2), *normal(2, 2)), (2, 50, 150), (1,)),
    (gated_delta_rule, (normal(41, 400), normal(41, 100), normal(41, 2), normal(2), normal(100)), (2, 50, 150), (1,)),
    (state_space, (normal(41, 66), *normal(2, 41, 70), normal(41, 2), *normal(3, 2)), (2, 33, 70), ((0.1, 3.0),)),
    (selective_scan, (*normal(2, 41, 99), *normal(2, 41, 17), normal(99), normal(99, 17), normal(99)), (99, 17), ()),
    (gated_norm, (*normal(2, 41, 66), normal(33), 1e-5, 33, False), None, ()),
):
    results = []
    for backend in ("cpu", "reference"):
        states = np.ones((2, *(shape or ())), np.float32)
        of_states = () if shape is None else (rows, states)
        results.append((select(backend, "cpu")[op](*arguments, *of_states, *others), states))
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4, err_msg=op.name)
        digest.update(ours)
print(instruction_set(), digest.hexdigest())
"""


def test_recurrences_are_near_the_reference_in_all() -> None:
    levels = kernel_levels(instructions())
    commands = [[sys.executable, "-c", RECURRENCES, level] for level in levels]
    printed = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout for command in commands]
    used, digests = zip(*map(str.split, printed), strict=True)
    assert list(used) == levels
    assert len(set(digests[levels.index("portable") + 1 :])) <= 1, dict(zip(levels, digests, strict=True))


def test_a_process_computes_with_one() -> None:
    used = pyllm_kernels.instruction_set()
    pyllm_kernels.use_instruction_set(used)
    with pytest.raises(ValueError, match="this processor lacks mmx: choose from portable"):
        pyllm_kernels.use_instruction_set("mmx")
    for other in {*kernel_levels(instructions())} - {used}:
        with pytest.raises(ValueError, match=f"this process uses {used} already"):
            pyllm_kernels.use_instruction_set(other)
