"""What attention must know about a batch: where each row's queries and cached tokens are.

It does not know which request a row belongs to; a row finds its blocks through its slot.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's batch. A row is one sequence: `query_length` new tokens at the end of `sequence_length` cached ones.

    The tensors are int32 and on the device of the queries. The integers are known to the caller from the plan, so that
    no kernel launch has to wait for the device.

    - `block_tables` [max_num_seqs, max_blocks]: `block_tables[slot, i]` is the block of positions
      `i * block_size` to `(i + 1) * block_size - 1`; entries past a sequence's end are never used.
    - `slots` [rows]: each row's line of `block_tables`.
    - `query_starts` [rows + 1]: row i owns the query tokens `query_starts[i]` to `query_starts[i + 1] - 1`.
    - `sequence_lengths` [rows]: tokens of the sequence in the cache, this step's own included.
    - `max_query_length`, `max_sequence_length`: over the rows; `num_tokens`: `query_starts[-1]`.
    """

    block_tables: Tensor
    slots: Tensor
    query_starts: Tensor
    sequence_lengths: Tensor
    max_query_length: int
    max_sequence_length: int
    num_tokens: int
