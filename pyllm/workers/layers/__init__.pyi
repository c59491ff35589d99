from .attention import PagedAttention
from .experts import Experts
from .linear import ColumnParallelLinear, RowParallelLinear
from .norm import Norm
from .rank_group import RankGroup
from .stage_link import StageLink
from .vocab_embedding import VocabularyParallelEmbedding, VocabularyParallelHead
from .weight_placement import WeightPlacement, set_threads

__all__ = [
    "ColumnParallelLinear",
    "Experts",
    "Norm",
    "PagedAttention",
    "RankGroup",
    "RowParallelLinear",
    "StageLink",
    "VocabularyParallelEmbedding",
    "VocabularyParallelHead",
    "WeightPlacement",
    "set_threads",
]
