"""The kernels of pyllm: each op has a torch reference, which is its specification, and a Triton version.

Call an op from here and the device of its tensors picks the version, or `select` a backend by name. Nothing here
knows of requests, schedulers or models. Importing this package imports torch, but Triton only when it is selected.
"""

from pyllm_kernels.dispatch import (
    BackendError,
    Kernels,
    add_rms_norm,
    copy_blocks,
    paged_attention,
    rms_norm,
    rope_and_kv_write,
    select,
    silu_and_mul,
    swap_blocks,
)
from pyllm_kernels.metadata import AttentionMetadata

__all__ = [
    "AttentionMetadata",
    "BackendError",
    "Kernels",
    "add_rms_norm",
    "copy_blocks",
    "paged_attention",
    "rms_norm",
    "rope_and_kv_write",
    "select",
    "silu_and_mul",
    "swap_blocks",
]
