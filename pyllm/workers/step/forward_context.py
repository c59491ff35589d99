"""The shared inputs of all layers in one forward pass. The runner makes them; layers only read them."""

from dataclasses import dataclass
from typing import Protocol

from pyllm_kernels import AttentionMetadata, Kernels
from torch import Tensor

from pyllm.workers.step.kv_cache import KVCache
from pyllm.workers.step.kv_selector import KVSelector
from pyllm.workers.step.position_tables import PositionTables


class AttentionHook(Protocol):
    """Is called around each layer's attention, as a KV connector needs it. It may read and wait, and must be quick.

    `output` is [tokens, heads of this rank, head_dim]; on a GPU, work on it joins the current stream.
    """

    def before_attention(self, layer: int, context: "ForwardContext") -> None:
        """Called before the layer writes its new keys and values and reads the cache: loaded blocks must be there."""

    def after_attention(self, layer: int, output: Tensor, context: "ForwardContext") -> Tensor:
        """Called when the layer's keys and values are in the cache; returns `output`, or a replacement."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Passed down whole, so that a layer with a new need changes no signature."""

    kernels: Kernels
    kv_cache: KVCache
    attention: tuple[AttentionMetadata, ...]  # of each group of layers
    positions: Tensor  # int32 [tokens]
    slot_mapping: Tensor  # int32 [groups, tokens], block * block_size + offset
    position_tables: PositionTables
    hooks: tuple[AttentionHook, ...] = ()
    # From the pipeline stage before: a pending output and the residual stream, [2, tokens, hidden_size].
    received: Tensor | None = None
    selector: KVSelector | None = None  # None: all rows attend to all blocks
