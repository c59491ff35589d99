"""The shared inputs of all layers in one forward pass, which the runner makes; and a choice from layer to layer."""

from dataclasses import dataclass, field
from typing import Protocol

from pyllm_kernels import AttentionMetadata, Kernels, StateRows
from pyllm_kernels.ops.token_selection import TokenSelection
from pyllm_kernels.tensors import Tensor

from pyllm.workers.kv.kv_cache import CachedLayer, KVCache
from pyllm.workers.kv.state_cache import StateCache
from pyllm.workers.step.kv_selector import KVSelector
from pyllm.workers.step.position_tables import PositionTables


class AttentionHook(Protocol):
    """Functions to call around each layer's attention, for KV connectors. They may read and wait, and must be quick.

    `output` is [tokens, heads of this rank, head_dim]; on a GPU, work on it must use the current stream.
    """

    def before_attention(self, layer: int) -> None:
        """Called before the layer writes its new keys and values and reads the cache; wait for loaded blocks here."""

    def after_attention(self, layer: int, output: Tensor, cached: CachedLayer, metadata: AttentionMetadata) -> Tensor:
        """Called when the layer's keys and values are in the cache; returns `output`, or a replacement."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The inputs of one pass, passed to all layers as one object, so that a new input changes no signatures."""

    kernels: Kernels
    kv_cache: KVCache
    attention: tuple[AttentionMetadata, ...]  # of each group of layers
    positions: Tensor  # int32 [tokens]
    slot_mapping: Tensor  # int32 [groups, tokens], block * block_size + offset
    position_tables: PositionTables
    hooks: tuple[AttentionHook, ...] = ()
    # From the pipeline stage before: tensors of `ModelSpec.stage_widths` side by side, [tokens, width].
    received: Tensor | None = None
    selector: KVSelector | None = None  # None: all rows attend to all blocks
    state_cache: StateCache | None = None
    state_rows: StateRows | None = None  # None: no layer keeps a state
    per_layer_inputs: Tensor | None = None  # [tokens, layers * size], see `PerLayerInputSpec`
    # The last choice of tokens, by the layer that made it; layers after it may have none of their own.
    selections: dict[int, TokenSelection] = field(default_factory=dict)

    def states_of(self, layer: int) -> tuple[StateRows, tuple[Tensor, ...]]:
        """The states that each row reads and writes, and the parts of all states in a layer."""
        assert self.state_cache is not None, "a model without states"
        assert self.state_rows is not None, "a model without states"
        return self.state_rows, self.state_cache.layers[layer]
