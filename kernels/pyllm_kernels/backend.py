"""The interface of a backend: a function for each op. Knows no backend; `ops.py` documents the ops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pyllm_kernels.block_selection import KeySummaries, SparseRows
from pyllm_kernels.cpu_linear import PackedLinear
from pyllm_kernels.edits import LogitsEdits
from pyllm_kernels.experts import ClampedSwiglu, ExpertMatrices, Router
from pyllm_kernels.matrix_rows import MatrixRows
from pyllm_kernels.metadata import AttentionLayer, AttentionMetadata, AttentionShape, KVScales, QKNorm


class PackedLinearOp(Protocol):
    """The signature of `packed_linear`."""

    def __call__(self, x: Tensor, packed: PackedLinear, out: Tensor | None = None, /) -> Tensor: ...


class W4A16LinearOp(Protocol):
    """The signature of `linear_w4a16`."""

    def __call__(
        self, x: Tensor, integers: Tensor, scales: Tensor, minimums: Tensor, out: Tensor | None = None, /
    ) -> Tensor: ...


class W8LinearOp(Protocol):
    """The signature of `linear_w8a16` and `linear_w8a8`."""

    def __call__(self, x: Tensor, integers: Tensor, scales: Tensor, out: Tensor | None = None, /) -> Tensor: ...


class FP8LinearOp(Protocol):
    """The signature of `linear_fp8`."""

    def __call__(
        self, x: Tensor, weight: Tensor, scales: Tensor, out: Tensor | None = None, block: tuple[int, int] = ..., /
    ) -> Tensor: ...


class AddNormOp(Protocol):
    """The signature of `add_rms_norm` and `add_layer_norm`."""

    def __call__(
        self, x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, factor: float = 1.0, /
    ) -> tuple[Tensor, Tensor]: ...


class AddOp(Protocol):
    """The signature of `add`."""

    def __call__(self, x: Tensor, residual: Tensor, factor: float = 1.0, /) -> Tensor: ...


class ScaleAndCapOp(Protocol):
    """The signature of `scale_and_cap`."""

    def __call__(self, x: Tensor, factor: float, cap: float | None = None, /) -> Tensor: ...


class ActivationOp(Protocol):
    """The signature of `activation`."""

    def __call__(self, x: Tensor, kind: str, gated: bool = True, /) -> Tensor: ...


class ExpertsOp(Protocol):
    """The signature of `experts`."""

    def __call__(
        self, x: Tensor, logits: Tensor, router: Router, kind: str | ClampedSwiglu, matrices: ExpertMatrices, /
    ) -> Tensor: ...


class RopeAndKVWriteOp(Protocol):
    """The signature of `rope_and_kv_write`."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        slot_mapping: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        norm: QKNorm | None = None,
        scales: KVScales = ...,
        query_scales: Tensor | None = None,
        /,
    ) -> None: ...


class PackRowsOp(Protocol):
    """The signature of `pack_rows`."""

    def __call__(
        self,
        parts: Sequence[MatrixRows],
        weight_format: str,
        dtype: torch.dtype,
        room: Callable[[int], Tensor] = ...,
        /,
    ) -> PackedLinear: ...


class PlanAttentionOp(Protocol):
    """The signature of `plan_attention`."""

    def __call__(
        self, metadata: AttentionMetadata, shape: AttentionShape, planned: AttentionMetadata | None = None, /
    ) -> AttentionMetadata: ...


class EditLogitsOp(Protocol):
    """The signature of `edit_logits`."""

    def __call__(
        self,
        logits: Tensor,
        rows: Tensor,
        edits: LogitsEdits,
        mask_rows: Tensor | None = None,
        masks: Tensor | None = None,
        out: Tensor | None = None,
        /,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """The ops of one backend. Each field has the signature and meaning of the function of that name in `ops.py`.

    `kept_format` returns the format in which `pack_rows` can keep quantised rows without loss, or an empty text. On a
    CPU it is one of `GGUF_BLOCKS`, or "int8" with a scale a row. In Triton it is "q4_0", "q4_1", "q8_0" (also for rows
    of "q5_0" and "iq4_nl"), "int8" with a scale a row, or "float8_e4m3fn" with a scale for each row, or for a multiple
    of 64 features.
    """

    backend: str
    pack_linear: Callable[[Tensor], PackedLinear]
    kept_format: Callable[[MatrixRows], str]
    pack_rows: PackRowsOp
    packed_linear: PackedLinearOp
    packed_rows: Callable[[PackedLinear, Tensor], Tensor]
    linear_w4a16: W4A16LinearOp
    linear_w8a16: W8LinearOp
    linear_w8a8: W8LinearOp
    linear_fp8: FP8LinearOp
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: AddNormOp
    layer_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_layer_norm: AddNormOp
    add: AddOp
    add_bias: Callable[[Tensor, Tensor], Tensor]
    scale_and_cap: ScaleAndCapOp
    rope_and_kv_write: RopeAndKVWriteOp
    activation: ActivationOp
    experts: ExpertsOp
    plan_attention: PlanAttentionOp
    paged_attention: Callable[[Tensor, Tensor, Tensor, AttentionMetadata, AttentionLayer], Tensor]
    score_blocks: Callable[[Tensor, Tensor, SparseRows, float, KeySummaries], Tensor]
    select_blocks: Callable[[Tensor, Tensor, SparseRows], AttentionMetadata]
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
    swap_blocks: Callable[[Tensor, Tensor, Tensor], None]
    gather_blocks: Callable[[Tensor, Tensor, Tensor], None]
    scatter_blocks: Callable[[Tensor, Tensor, Tensor], None]
    edit_logits: EditLogitsOp
    logprobs: Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
