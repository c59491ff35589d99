"""The kernels of pyllm: each op has a torch reference, which is its specification, and a version in Triton or Rust.

Call an op from here and the device of its tensors picks the version, or `select` a backend by name. Knows no
requests, schedulers or models. Importing this package imports torch, but Triton only when it is selected.
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
)
from pyllm_kernels.backend import Kernels
from pyllm_kernels.block_selection import SUMMARY_PARTS, BlockBudget, KeySummaries, SparseRows
from pyllm_kernels.cards import CardError, check_card
from pyllm_kernels.cpu_linear import INT8_BLOCKS, NotFiniteError, PackedLinear
from pyllm_kernels.dispatch import BackendError, batch_invariant, select
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router
from pyllm_kernels.graph import CaptureError, Graph
from pyllm_kernels.matrix_rows import (
    FLOAT_DTYPES,
    GGUF_BLOCKS,
    SCALED_DTYPES,
    MatrixRows,
    Scales,
    dtype_name,
    empty_bytes,
    zero_rows,
)
from pyllm_kernels.metadata import UNSCALED, AttentionLayer, AttentionMetadata, AttentionShape, KVScales, QKNorm
from pyllm_kernels.ops import (
    activation,
    add,
    add_bias,
    add_layer_norm,
    add_rms_norm,
    copy_blocks,
    edit_logits,
    experts,
    gather_blocks,
    layer_norm,
    linear_fp8,
    linear_w4a16,
    linear_w8a8,
    linear_w8a16,
    logprobs,
    pack_linear,
    pack_rows,
    packed_linear,
    packed_rows,
    paged_attention,
    plan_attention,
    rms_norm,
    rope_and_kv_write,
    scale_and_cap,
    scatter_blocks,
    score_blocks,
    select_blocks,
    swap_blocks,
)

__all__ = [
    "FLOAT_DTYPES",
    "GGUF_BLOCKS",
    "INT8_BLOCKS",
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
    "ExpertMatrices",
    "Graph",
    "KVScales",
    "Kernels",
    "KeySummaries",
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
    "activation",
    "add",
    "add_bias",
    "add_layer_norm",
    "add_rms_norm",
    "batch_invariant",
    "check_card",
    "copy_blocks",
    "dtype_name",
    "edit_logits",
    "empty_bytes",
    "experts",
    "gather_blocks",
    "instruction_set",
    "layer_norm",
    "linear_fp8",
    "linear_w4a16",
    "linear_w8a8",
    "linear_w8a16",
    "logprobs",
    "num_threads",
    "pack_linear",
    "pack_rows",
    "packed_linear",
    "packed_rows",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rope_and_kv_write",
    "scale_and_cap",
    "scatter_blocks",
    "score_blocks",
    "select",
    "select_blocks",
    "set_num_threads",
    "stay_awake",
    "swap_blocks",
    "zero_rows",
]

os.register_at_fork(after_in_child=forget_threads)
