"""What every layer of one forward pass needs beside its input. Made by the runner, read-only in the layers."""

from dataclasses import dataclass
from typing import Protocol

from pyllm_kernels import AttentionMetadata, Kernels
from torch import Tensor

from pyllm.workers.kv_cache import KVCache


class AttentionHook(Protocol):
    """Something that each layer's attention passes by, such as a KV connector. It may look and wait, and must be quick.

    `output` is [tokens, heads of this rank, head_dim]; on a GPU what is done to them joins the current stream.
    """

    def before_attention(self, layer: int, context: "ForwardContext") -> None:
        """The layer is about to write its new keys and values and to read the cache: what is loaded must be there."""

    def after_attention(self, layer: int, output: Tensor, context: "ForwardContext") -> Tensor:
        """The layer's keys and values are in the cache; gives `output`, or what replaces it."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Passed down whole, so that a layer that needs one thing more changes no signature on the way."""

    kernels: Kernels
    kv_cache: KVCache
    attention: AttentionMetadata
    positions: Tensor  # int32 [tokens]
    slot_mapping: Tensor  # int32 [tokens], block * block_size + offset
    cos_sin: Tensor  # float32 [positions, head_dim]
    hooks: tuple[AttentionHook, ...] = ()
