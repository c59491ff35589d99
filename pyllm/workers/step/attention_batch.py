"""The input of an attention backend before each step: rows, and groups of layers with common block tables.

Knows no backend and no model.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyllm_kernels import AttentionMetadata, AttentionShape
from torch import Tensor

Ints = npt.NDArray[np.int32]


class Chunk(NamedTuple):
    """Tokens of a sequence that a step computes: those from `start` on."""

    sequence: int
    tokens: Ints
    start: int = 0


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers with the same heads and the same block tables, which are those of equal windows."""

    shape: AttentionShape
    block_tables: Tensor  # int32 [max_num_seqs, max_blocks], at one address for good
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The rows of a step, or of a graph's next replay; those of `AttentionMetadata`, on the device and on the host.

    In a graph's fixed buffers more rows may follow those of the host: they pad the batch, and their length is 0. More
    tokens than those of the rows, up to `num_tokens`, may pad it, too: attention may leave their output as it is.
    `captured` is what `prepare` gave before the graph was captured, whose memory it fills again for a replay.
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
        """What the kernels must know of it."""
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
