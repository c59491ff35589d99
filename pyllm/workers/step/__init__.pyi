from .attention_batch import AttentionBatch, AttentionGroup, Chunk, Ints
from .batch import Array, Batch, PlanBuffer, Sections, gather
from .forward_context import AttentionHook, ForwardContext
from .host_tier import HostTier
from .kv_cache import HostPool, KVCache, KVCacheShape, host_blocks_of_rank
from .kv_selector import KVSelector
from .page_prefaulter import PagePrefaulter
from .position_tables import PositionTables
from .slots import Slots
from .staging import HostCopy, to_device
from .step_rows import StepRows, split_rows, written_blocks
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
    "KVSelector",
    "PagePrefaulter",
    "PlanBuffer",
    "PositionTables",
    "Sections",
    "Slots",
    "StepRows",
    "gather",
    "host_blocks_of_rank",
    "split_rows",
    "staging_bytes",
    "to_device",
    "written_blocks",
]
