"""What every layer of one forward pass needs beside its input. Made by the runner, read-only in the layers."""

from dataclasses import dataclass

from pyllm_kernels import AttentionMetadata, Kernels
from torch import Tensor

from pyllm.workers.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Passed down whole, so that a layer that needs one thing more changes no signature on the way."""

    kernels: Kernels
    kv_cache: KVCache
    attention: AttentionMetadata
    positions: Tensor  # int32 [tokens]
    slot_mapping: Tensor  # int32 [tokens], block * block_size + offset
    cos_sin: Tensor  # float32 [positions, head_dim]
