"""The kernels of pyllm: each op has a torch reference, which is its specification, and a version in Triton or Rust.

Call an op from here and the device of its tensors picks the version, or `select` a backend by name. Nothing here
knows of requests, schedulers or models. Importing this package imports torch, but Triton only when it is selected.
"""

import os

from pyllm_kernels._cpu import LogitsStates, forget_threads, instruction_set, num_threads, set_num_threads
from pyllm_kernels.cards import CardError, check_card
from pyllm_kernels.cpu_linear import BLOCK_BYTES, INT8_BLOCKS, PackedLinear
from pyllm_kernels.dispatch import (
    BackendError,
    Kernels,
    add_rms_norm,
    batch_invariant,
    copy_blocks,
    edit_logits,
    logprobs,
    norm_rope_and_kv_write,
    pack_blocks,
    pack_int8,
    pack_int8_blocks,
    pack_linear,
    packed_linear,
    packed_rows,
    paged_attention,
    plan_attention,
    rms_norm,
    rope_and_kv_write,
    select,
    silu_and_mul,
    swap_blocks,
)
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.graph import Graph
from pyllm_kernels.metadata import AttentionMetadata, AttentionShape, KVScales, QKNorm

__all__ = [
    "BLOCK_BYTES",
    "INT8_BLOCKS",
    "AttentionMetadata",
    "AttentionShape",
    "BackendError",
    "CardError",
    "Graph",
    "KVScales",
    "Kernels",
    "LogitsEdits",
    "LogitsStates",
    "PackedLinear",
    "QKNorm",
    "add_rms_norm",
    "batch_invariant",
    "check_card",
    "copy_blocks",
    "edit_logits",
    "instruction_set",
    "logprobs",
    "norm_rope_and_kv_write",
    "num_threads",
    "pack_blocks",
    "pack_int8",
    "pack_int8_blocks",
    "pack_linear",
    "packed_linear",
    "packed_rows",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rope_and_kv_write",
    "select",
    "set_num_threads",
    "silu_and_mul",
    "swap_blocks",
]

os.register_at_fork(after_in_child=forget_threads)
