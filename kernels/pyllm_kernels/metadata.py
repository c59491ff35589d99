"""The inputs of attention and of recurrent layers for a batch and for a layer: rows, tasks, norms and scales.

Knows no requests; a row's slot leads to its blocks.
"""

from dataclasses import dataclass
from typing import Any

from pyllm_kernels.tensors import Tensor


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The shape that determines a step's tasks, beside the batch: one rank's heads, and the dtype of its queries.

    Dtypes are named. `cache_dtype` is the dtype of keys and values; None: that of the queries. `window` is at least the
    window of every layer, see `AttentionLayer`; None: some layer may have no window. `value_start` is that of every
    layer.
    """

    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    cache_dtype: str | None = None
    window: int | None = None
    value_start: int = 0


RELATIVE_BIAS_PADDING = 16
"""Numbers behind the bias of a head that kernels may read."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The attention parameters of one layer. Scores are multiplied by `scale`.

    - `window`: a token at position p attends to the positions p - window + 1 to p; None: from 0.
    - `bidirectional`: it attends to those up to p + window - 1, too; without a window, to its whole sequence, which is
      in the cache by then.
    - `soft_cap`: a scaled score becomes `soft_cap * tanh(score / soft_cap)` (arXiv 2408.00118); None: no cap.
    - `sinks`: float32 [heads], contiguous, of this rank's heads: each is the score of one more position, which has a
      value of zeros (gpt-oss). It is neither scaled nor capped. None: no sinks.
    - `slopes`: float32 [heads], contiguous, of this rank's heads: the scaled and capped score of a position falls by so
      much for each position of distance (ALiBi, arXiv 2108.12409). None: it does not.
    - `relative_bias`: float32 [heads, 2 * n + RELATIVE_BIAS_PADDING], contiguous, of this rank's heads: the number at
      n + k is added to the scaled and capped score of a key k positions after the query (arXiv 1910.10683). Sequences
      have at most n tokens; the padding is not used. None: nothing is added. Not in Triton.
    - `value_start`: of latents, for which keys and values are one tensor: a value begins at this number of its key, and
      the numbers of the output before it are undefined. 0: the whole key, or values of their own.
    - `value_size`: the numbers of a head's value, the first of those that the cache has room for, and of its output;
      None: all.
    """

    scale: float
    window: int | None = None
    bidirectional: bool = False
    soft_cap: float | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    relative_bias: Tensor | None = None
    value_start: int = 0
    value_size: int | None = None

    @property
    def middle_of_bias(self) -> int:
        """The index of the distance 0 in the relative bias."""
        assert self.relative_bias is not None
        width: int = self.relative_bias.shape[1]
        return (width - RELATIVE_BIAS_PADDING) // 2


@dataclass(frozen=True, slots=True)
class AttentionTasks:
    """The tasks of each program, made on the device once a step and shared by the layers. All int32.

    - `tiles` [max_tiles, 2]: a prefill tile's row and its first query, counted from the row's start.
    - `shares` [num_shares, 2]: the first and the last row of a decode program's share, for each KV head;
      `row_begins` [rows]: the start of each decoded row on the line of all rows' tiles, in tiles; `share_tiles` [1]:
      the length of a share on that line (`decode_shares.py`). Tiles before `window` are not on it; 0: all are.

    A tile's row of -1, or a share's last row of -1, means that there is no work: the largest number of tasks follows
    from the shapes of the batch, and only the device knows the actual number. None: the batch cannot have rows of that
    kind.
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
    - `slots` [rows]: the index of each row in `block_tables`.
    - `query_starts` [rows + 1]: row i owns the query tokens `query_starts[i]` to `query_starts[i + 1] - 1`.
    - `sequence_lengths` [rows]: tokens of the sequence in the cache, including this step's. A padding row has length 0
      and no blocks; its output is undefined.
    - `max_query_length`, `max_sequence_length`: at least the maximum over the rows; `num_tokens`: `query_starts[-1]`,
      or more with padding tokens, which belong to no row; their output is undefined.
    - `batch_invariant`: on a GPU, whether each row must get the same bits as alone, and its tokens the same bits one
      by one or many at once. Costs speed there; on a CPU this always holds.
    - `tasks`: the addition of a backend for all layers before a step, `AttentionTasks` from `plan_attention`.
    - `is_by_token`: each token is a row, as from `select_tokens`: a graph's replay has as many rows as tokens.
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
    is_by_token: bool = False


@dataclass(frozen=True, slots=True)
class StateTasks:
    """The rows of a step by the program that computes them, made on the device once a step. Both int32 [rows].

    - `firsts`: the row with which the program of each row begins: a row that reads a state which an earlier row of the
      step writes has the program of that row.
    - `following`: the next row of the same program; the number of rows if there is none.
    """

    firsts: Tensor
    following: Tensor


@dataclass(frozen=True, slots=True)
class StateRows:
    """The rows of a step for a layer with states, and the state that each reads and writes. All int32.

    A row's tokens follow one another in a sequence. Rows are computed in their order: one may read the state that an
    earlier one wrote, so two rows may be of one sequence. A row's source stays unchanged, unless it is its destination.
    A GPU orders rows by that alone: there no row may write a state that an earlier row reads or writes, unless it goes
    on from it, and indices are not checked.

    - `query_starts` [rows + 1]: as in `AttentionMetadata`.
    - `sources` [rows]: the index of the state before the row; -1: zeros, at the start of a sequence.
    - `destinations` [rows]: the index of the state after the row; -1: it is not kept.
    - `tasks`: the addition of a backend for all layers before a step, `StateTasks` from `plan_states`.
    """

    query_starts: Tensor
    sources: Tensor
    destinations: Tensor
    tasks: Any = None


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMSNorm of each head of query and key, before the rotation or after it; weights [head_dim]."""

    query_weight: Tensor
    key_weight: Tensor
    epsilon: float
    after_rotation: bool = False


@dataclass(frozen=True, slots=True)
class KVScales:
    """The scales that the numbers in a cache are multiplied with to get keys and values; for fp8 caches."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KVScales()
