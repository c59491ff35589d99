from .attention_batch import AttentionBatch, AttentionGroup, Chunk, Ints
from .batch import Array, Batch, PlanBuffer, Sections, gather
from .forward_context import AttentionHook, ForwardContext
from .host_tier import HostTier
from .kv_cache import HostPool, KVCache, KVCacheShape, host_blocks_of_rank
from .page_prefaulter import PagePrefaulter
from .position_tables import PositionTables
from .slots import Slots
from .staging import HostCopy, to_device
from .swap_stream import staging_bytes

__all__ = [
    "Array",
    "AttentionBatch",
    "AttentionGroup",
    "AttentionHook",
    "Batch",
    "Chunk",
    "ForwardContext",
    "HostCopy",
    "HostPool",
    "HostTier",
    "Ints",
    "KVCache",
    "KVCacheShape",
    "PagePrefaulter",
    "PlanBuffer",
    "PositionTables",
    "Sections",
    "Slots",
    "gather",
    "host_blocks_of_rank",
    "staging_bytes",
    "to_device",
]
