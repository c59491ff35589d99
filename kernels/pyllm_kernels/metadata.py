"""What attention must know about a batch, and about a layer: rows, tasks, norms and scales.

It does not know which request a row belongs to; a row finds its blocks through its slot.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the tasks of a step depend on beside the batch: one rank's heads, and the dtype of its queries.

    `cache_dtype` is that of keys and values; None: that of the queries. `window` is of every layer, as in
    `AttentionLayer`, or longer; None: some layer may have none.
    """

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    cache_dtype: torch.dtype | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """How one layer attends. Scores are multiplied by `scale`.

    - `window`: a token at position p sees the positions from p - window + 1 to p; None: from 0.
    - `soft_cap`: a scaled score becomes `soft_cap * tanh(score / soft_cap)` (arXiv 2408.00118); None: it stays.
    - `sinks`: float32 [heads], contiguous, of this rank's heads: each is the score of one more position, which has a
      value of zeros (gpt-oss). It is neither scaled nor capped. None: there are none.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionTasks:
    """Which program does what, made on the device once a step and shared by the layers. All int32.

    - `tiles` [max_tiles, 2]: a prefill tile's row and its first query, counted from the row's start.
    - `shares` [num_shares, 2]: the first and the last row of what one decode program of each KV head attends to;
      `row_begins` [rows]: where each decoded row begins on the line of all rows' tiles, in tiles; `share_tiles` [1]:
      the length of a share on that line (`decode_shares.py`). Tiles before `window` are not on it; 0: all are.

    A tile's row of -1, or a share's last row, means that there is nothing to do: how many tasks there may be follows
    from the shapes of the batch, how many there are only the device knows. None: no row of that kind can be in the
    batch.
    """

    tiles: Tensor | None
    shares: Tensor | None
    row_begins: Tensor | None
    share_tiles: Tensor | None
    window: int = 0


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's batch. A row is one sequence: `query_length` new tokens at the end of `sequence_length` cached ones.

    The tensors are int32 and on the device of the queries. The integers are known to the caller from the plan, so that
    no kernel launch has to wait for the device.

    - `block_tables` [max_num_seqs, max_blocks]: `block_tables[slot, i]` is the block of positions
      `i * block_size` to `(i + 1) * block_size - 1`; entries past a sequence's end are never used.
    - `slots` [rows]: each row's line of `block_tables`.
    - `query_starts` [rows + 1]: row i owns the query tokens `query_starts[i]` to `query_starts[i + 1] - 1`.
    - `sequence_lengths` [rows]: tokens of the sequence in the cache, this step's own included. A row of length 0 pads
      the batch: it has no blocks, and its output means nothing.
    - `max_query_length`, `max_sequence_length`: over the rows, or more; `num_tokens`: `query_starts[-1]`,
      or more where tokens without a row pad the batch: their output means nothing.
    - `batch_invariant`: on a GPU, whether each row must get the bits that it gets alone, and its tokens the same
      whether they come one by one or many at once. Costs speed there; holds on a CPU without being asked.
    - `tasks`: what a backend adds for all layers before a step, `AttentionTasks` of `plan_attention`.
    """

    block_tables: Tensor
    slots: Tensor
    query_starts: Tensor
    sequence_lengths: Tensor
    max_query_length: int
    max_sequence_length: int
    num_tokens: int
    batch_invariant: bool = False
    tasks: Any = None


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMSNorm of each head of the query and of the key, before they are rotated; weights [head_dim]."""

    query_weight: Tensor
    key_weight: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class KVScales:
    """What the numbers in a cache are multiplied with to give keys and values; of use where they are fp8."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KVScales()
