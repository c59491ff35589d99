"""A step's rows and the blocks that it writes, on the host, for selectors of KV blocks.

Knows no layer and no selector.
"""

from typing import NamedTuple

import numpy as np

from pyllm.workers.step.attention_batch import Ints
from pyllm.workers.step.batch import Batch


class StepRows(NamedTuple):
    """Rows of new tokens at the end of cached ones, as in `AttentionMetadata`, and which of them are sparse.

    A sparse row has one token, of an output. The sequence of a slot may have several rows.
    """

    query_starts: Ints  # [rows + 1]
    sequence_lengths: Ints  # [rows]
    slots: Ints  # [rows]
    is_sparse: Ints  # [rows], 0 or 1


def split_rows(batch: Batch, prompt_lengths: Ints) -> StepRows:
    """Split the plan's rows into one row for each output token; the prompt tokens of a row stay together.

    A plan's row has several output tokens to verify drafts, or to recompute a sequence that lost its blocks. Each of
    them must attend as it does alone, so that its blocks, keys and values do not depend on the step.
    `prompt_lengths` is int32 [slots].
    """
    starts, lengths, slots = batch.host.query_starts, batch.host.sequence_lengths, batch.host.slots
    num_tokens = np.diff(starts)
    num_outputs = np.clip(lengths - prompt_lengths[slots], 0, num_tokens)
    if batch.max_query_length <= 1:  # As in every decode.
        return StepRows(starts, lengths, slots, num_outputs.astype(np.int32))
    num_prompt = num_tokens - num_outputs
    parts = num_outputs + (num_prompt > 0)
    of_row = np.repeat(np.arange(len(slots)), parts)
    index = np.arange(len(of_row)) - np.repeat(np.cumsum(parts) - parts, parts)  # of each part in its row
    is_prompt = (index == 0) & (num_prompt[of_row] > 0)
    sizes = np.where(is_prompt, num_prompt[of_row], 1)
    ends = np.cumsum(sizes)
    # Tokens of the row that come after the part.
    following = starts[1:][of_row] - ends
    return StepRows(
        np.concatenate(([0], ends)).astype(np.int32),
        (lengths[of_row] - following).astype(np.int32),
        slots[of_row],
        (~is_prompt).astype(np.int32),
    )


def written_blocks(batch: Batch, block_size: int) -> Ints:
    """The blocks of all groups whose keys and values a plan changes: by its tokens, copies and swaps from the host."""
    host = batch.host
    slots = host.slot_mapping[host.slot_mapping >= 0]
    swaps = host.swaps.reshape(-1, 3)
    written = np.concatenate((slots // block_size, host.block_copies[1::2], swaps[swaps[:, 0] == 1, 1]))
    return np.unique(written).astype(np.int32)
