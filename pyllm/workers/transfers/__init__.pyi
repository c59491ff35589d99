from .kv_blocks import CpuBlocks, GpuBlocks
from .rank_transfers import RankTransfers

__all__ = [
    "CpuBlocks",
    "GpuBlocks",
    "RankTransfers",
]
