"""The kernels of pyllm: each op has a reference in numpy, which is its specification, and a version in Triton or Rust.

Call an op of `ops/` and the device of its tensors picks the version, or `select` a backend by name. Knows no requests,
schedulers or models.
"""

import os

from pyllm_kernels._cpu import Linear as LinearLayout
from pyllm_kernels._cpu import (
    LogitsStates,
    OpTimes,
    forget_threads,
    instruction_set,
    num_threads,
    set_num_threads,
    stay_awake,
    use_instruction_set,
)
from pyllm_kernels.cards import CardError, check_card
from pyllm_kernels.graph import CaptureError, Graph
from pyllm_kernels.matrix_rows import (
    FLOAT_DTYPES,
    GGUF_BLOCKS,
    SCALED_DTYPES,
    MatrixRows,
    Scales,
    empty_bytes,
    zero_rows,
)
from pyllm_kernels.metadata import (
    RELATIVE_BIAS_PADDING,
    UNSCALED,
    AttentionLayer,
    AttentionMetadata,
    AttentionShape,
    KVScales,
    QKNorm,
    StateRows,
)
from pyllm_kernels.op import BackendError, Kernels
from pyllm_kernels.ops.activation import LimitedSwiglu, Xielu
from pyllm_kernels.ops.block_selection import SUMMARY_PARTS, BlockBudget, KeySummaries, SparseRows
from pyllm_kernels.ops.edit_logits import LogitsEdits
from pyllm_kernels.ops.experts import ClampedSwiglu, ExpertGroups, ExpertMatrices, Router
from pyllm_kernels.ops.packed_linear import INT8_BLOCKS, NotFiniteError, PackedLinear
from pyllm_kernels.registry import batch_invariant, select
from pyllm_kernels.tensors import dtype_name

__all__ = [
    "FLOAT_DTYPES",
    "GGUF_BLOCKS",
    "INT8_BLOCKS",
    "RELATIVE_BIAS_PADDING",
    "SCALED_DTYPES",
    "SUMMARY_PARTS",
    "UNSCALED",
    "AttentionLayer",
    "AttentionMetadata",
    "AttentionShape",
    "BackendError",
    "BlockBudget",
    "CaptureError",
    "CardError",
    "ClampedSwiglu",
    "ExpertGroups",
    "ExpertMatrices",
    "Graph",
    "KVScales",
    "Kernels",
    "KeySummaries",
    "LimitedSwiglu",
    "LinearLayout",
    "LogitsEdits",
    "LogitsStates",
    "MatrixRows",
    "NotFiniteError",
    "OpTimes",
    "PackedLinear",
    "QKNorm",
    "Router",
    "Scales",
    "SparseRows",
    "StateRows",
    "Xielu",
    "batch_invariant",
    "check_card",
    "dtype_name",
    "empty_bytes",
    "instruction_set",
    "num_threads",
    "select",
    "set_num_threads",
    "stay_awake",
    "use_instruction_set",
    "zero_rows",
]

os.register_at_fork(after_in_child=forget_threads)
