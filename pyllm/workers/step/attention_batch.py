"""The input of an attention backend before each step: rows, and groups of layers with common block tables.

Knows no backend and no model.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyllm_kernels import AttentionMetadata, AttentionShape
from pyllm_kernels.tensors import Tensor

Ints = npt.NDArray[np.int32]


class Chunk(NamedTuple):
    """Consecutive tokens of a sequence that a step computes, from position `start` on."""

    sequence: int
    tokens: Ints
    start: int = 0


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers with the same heads, the same window and the same block tables."""

    shape: AttentionShape
    block_tables: Tensor  # int32 [max_num_seqs, max_blocks], at a fixed address
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The rows of a step, or of a graph's next replay, as in `AttentionMetadata`, on the device and on the host.

    A graph's fixed buffers may have padding rows of length 0 after those of the host, and padding tokens after those of
    the rows, up to `num_tokens`: attention need not write their output. `captured` is the result of `prepare` at the
    capture of the graph; `prepare` refills its memory for a replay.
    """

    host_query_starts: Ints  # [rows + 1]
    host_sequence_lengths: Ints  # [rows]
    query_starts: Tensor
    sequence_lengths: Tensor
    slots: Tensor
    max_query_length: int
    max_sequence_length: int
    num_tokens: int
    captured: AttentionMetadata | None = None

    def metadata(self, group: AttentionGroup) -> AttentionMetadata:
        """The metadata for the kernels."""
        return AttentionMetadata(
            block_tables=group.block_tables,
            slots=self.slots,
            query_starts=self.query_starts,
            sequence_lengths=self.sequence_lengths,
            max_query_length=self.max_query_length,
            max_sequence_length=self.max_sequence_length,
            num_tokens=self.num_tokens,
            batch_invariant=group.batch_invariant,
        )
