from .attention import PagedAttention
from .experts import Experts
from .linear import ColumnParallelLinear, RowParallelLinear
from .norm import Norm
from .placement import Placement, set_threads
from .rank_group import RankGroup
from .stage_link import StageLink
from .vocab_embedding import VocabularyParallelEmbedding, VocabularyParallelHead

__all__ = [
    "ColumnParallelLinear",
    "Experts",
    "Norm",
    "PagedAttention",
    "Placement",
    "RankGroup",
    "RowParallelLinear",
    "StageLink",
    "VocabularyParallelEmbedding",
    "VocabularyParallelHead",
    "set_threads",
]
