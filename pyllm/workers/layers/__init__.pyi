from .attention import PagedAttention
from .linear import ColumnParallelLinear, RowParallelLinear
from .norm import RMSNorm
from .placement import Placement, set_threads
from .rank_group import RankGroup
from .rope import rope_table
from .vocab_embedding import VocabularyParallelEmbedding, VocabularyParallelHead

__all__ = [
    "ColumnParallelLinear",
    "PagedAttention",
    "Placement",
    "RMSNorm",
    "RankGroup",
    "RowParallelLinear",
    "VocabularyParallelEmbedding",
    "VocabularyParallelHead",
    "rope_table",
    "set_threads",
]
