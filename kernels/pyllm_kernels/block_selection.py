"""The arguments of `score_blocks` and `select_blocks`: the sparse rows, the number of blocks that they keep, and the
summaries that give blocks their scores.

Knows neither why a row is sparse, nor when a summary is out of date.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyllm_kernels.metadata import AttentionMetadata

# The number of vectors [head_dim] for each KV head of a block. "mean": the mean of its keys. "bounds": the maximum and
# the minimum of each dimension (Quest, arXiv 2406.10774).
SUMMARY_PARTS = {"mean": 1, "bounds": 2}

_Lengths = TypeVar("_Lengths", int, npt.NDArray[np.int32])


@dataclass(frozen=True, slots=True)
class BlockBudget:
    """The number of blocks that a sparse row keeps. A row with no more than `num_blocks` keeps all of them.

    - `num_sink_blocks`: the first blocks (attention sinks, arXiv 2309.17453).
    - `top_k`: the best blocks between the first and the last ones.
    - `num_recent_blocks`: the last blocks, at least 1. The last of them may be partly filled.
    """

    num_sink_blocks: int
    top_k: int
    num_recent_blocks: int

    @property
    def num_blocks(self) -> int:
        """The largest number of blocks that a row keeps."""
        return self.num_sink_blocks + self.top_k + self.num_recent_blocks

    def num_candidates(self, lengths: _Lengths, block_size: int) -> _Lengths:
        """The number of blocks between the first and the last ones of sequences of these lengths (an int or an array).

        It is negative if the first and the last ones overlap. If it exceeds `top_k`, a sparse row leaves blocks out.
        """
        return -(-lengths // block_size) - self.num_sink_blocks - self.num_recent_blocks


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A batch in which some rows may leave blocks out.

    - `is_sparse` int32 [rows], 0 or 1.
    - `budget`: the number of blocks that a sparse row keeps.
    """

    metadata: AttentionMetadata
    is_sparse: Tensor
    budget: BlockBudget


@dataclass(frozen=True, slots=True)
class KeySummaries:
    """Summaries of the keys of one layer; a block's summary is computed when a row first needs it.

    - `kind`: one of `SUMMARY_PARTS`.
    - `vectors` [num_blocks, kv_heads, parts, head_dim], of the cache's dtype.
    - `known` uint8 [num_blocks]: 1 if a block has a summary. After each write to a block, the caller sets it to 0.
    """

    kind: str
    vectors: Tensor
    known: Tensor
