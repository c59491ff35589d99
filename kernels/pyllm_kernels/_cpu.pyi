"""The kernels for CPUs, written in Rust: `kernels/src`.

Its callers are `cpu_linear.py`, `matrix_rows.py`, `cpu.py` and `graph.py`.

Tensors cross as addresses. Their sizes follow from the other arguments, their elements lie one after the other, and the
caller keeps them alive and lets nobody write to them during the call. The interpreter lock is released while a kernel
works. Calls from several threads wait for one another, as there is one pool of threads.

On a thread that captures a `Graph`, whatever computes is recorded instead of run: `Linear.run`, `Linear.unpack_rows`
and the functions up to `logprobs`. The addresses must stay good for as long as the graph is replayed then.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy.typing as npt

__all__ = [
    "Graph",
    "Lease",
    "Linear",
    "LogitsStates",
    "OpTimes",
    "activation",
    "add",
    "add_bias",
    "copy_blocks",
    "copy_rows",
    "edit_logits",
    "experts",
    "forget_threads",
    "instruction_set",
    "logprobs",
    "norm",
    "num_threads",
    "paged_attention",
    "read_rows",
    "rope_and_kv_write",
    "sample",
    "scale_and_cap",
    "score_blocks",
    "select_blocks",
    "set_num_threads",
    "stay_awake",
]

_Numbers: TypeAlias = npt.NDArray[Any] | bytes | bytearray
"""Numbers in a row: int32, or float32 where it says so."""
_Rows: TypeAlias = tuple[str, int, int]
"""A matrix with contiguous rows: its dtype, "float32" or "bfloat16", address, and elements from one row to the next."""
_Cache: TypeAlias = tuple[str, int, int, tuple[int, int, int, int]]
"""dtype, addresses of keys and values, and the shape of each: [num_blocks, block_size, kv_heads, head_dim]."""
_Batch: TypeAlias = tuple[int, tuple[int, int], int, int, int, int]
"""Addresses of int32: block tables and their shape, slots, query starts, sequence lengths; and the number of rows."""
_Edits: TypeAlias = tuple[int, int, int, int, int, int]
"""Addresses of the columns of `edits.py`: starts, ids, bias, repetition, subtracted; and the number of edits."""
_Masks: TypeAlias = tuple[int, int, tuple[int, int]]
"""Addresses of int32 [samples], each sample's mask or -1, and of the masks; and their shape, in words of 32 bits."""
_RowsOf: TypeAlias = tuple[str, int, int, int, int]
"""Rows of a matrix: a format or a dtype of `matrix_rows.py`, the address of their int64 addresses, and their number.

Then the address of their float32 scales [rows, groups], and how many features a group has; zeros where there are none.
"""
_Columns: TypeAlias = tuple[bytearray, bytearray, bytearray, bytearray, bytearray]

@final
class Linear:
    """How a matrix [out_features, in_features] is packed: 32 outputs side by side, zeros where there are fewer.

    Every output is made by one chain of float32 operations, rounded once: the same for any number of rows and threads.

    - Of floats, the chain is the sum over the inputs, in an order that follows from the matrix's shape and from the
      instruction set alone.
    - Of GGUF's groups of integers, each group of 32 features of the input is made into integers, too, -127 to 127 with
      a scale. Integer products are exact; the chain is over the groups in their order,
      `sum = fma(input scale * weight scale, product, sum)`, then for formats with minimums
      `sum = fma(minimum, input scale * sum of the input's integers, sum)`; "q2_k", "q3_k" and "q6_k" have two scales a
      group, and do each for either half. It is the same everywhere.
    - Of "int8", a row of the matrix is integers from -127 to 127 with a float32 scale, its largest magnitude / 127;
      rows of "int8" with one scale each are kept as they are, -128 included. A row of the input is
      `scale * (128 * high + low)` with high from -127 to 127 and low from -64 to 63. Integer products are exact; an
      output is `(input scale * weight scale) * fma(128, product of high, product of low)`. It is the same everywhere.
    - "int8" of blocks stays in their 4 bits. With a row's scale s, its largest possible magnitude / 127, a group's
      D = round(256 * scale / s) and M = round(256 * minimum / s) (q4_0's minimum is -8 * scale) make an integer q into
      `floor((D * q + M + 128) / 256)`.
    """

    def __new__(cls, format: str, dtype: str, in_features: int, out_features: int, blocks: str | None = None) -> Linear:
        """`dtype`, of inputs and outputs, is "float32" or "bfloat16"; `format` the same, or one of integers.

        "int8" is made of `dtype`, or of `blocks`, "q4_0" or "q4_1".
        Formats of integers are those of `matrix_rows.GGUF_BLOCKS`. Raises `ValueError` for others, where there are no
        features, more than 131,072 inputs of "int8", or a number of inputs that blocks do not fill.
        """
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def blocks(self) -> str | None:
        """The blocks that "int8" is made of."""
    @property
    def packed_bytes(self) -> int:
        """How much memory the packed matrix takes."""
    def pack(self, rows: list[_RowsOf], packed: int) -> int | None:
        """Write `packed` from the matrix's rows, on all threads.

        Gives back the first row that has a number that is not finite. `ValueError` where there are not `out_features`
        rows, or rows that cannot be packed so: blocks are made of blocks of their format, floats and "int8" of any.
        """
    def unpack_rows(self, packed: int, rows: int, num_rows: int, out: int) -> None:
        """Write to out [num_rows, in_features] the rows of the matrix named by rows, int32 [num_rows].

        `IndexError` where there is no such row, with nothing written.
        """
    def run(self, x: int, num_rows: int, packed: int, out: int, out_stride: int) -> None:
        """`out = x @ weight.T`: x [num_rows, in_features], out [num_rows, out_features].

        Output rows begin `out_stride` elements apart; `ValueError` where that is fewer than they have.
        """

def copy_rows(rows: list[_RowsOf], in_features: int, out: int) -> None:
    """Write to out the bytes of the rows, one behind the other; zeros for a row of zeros.

    `ValueError` for formats that are not known, or several of them.
    """

def read_rows(rows: list[_RowsOf], in_features: int, out: int) -> None:
    """Write to out, float32 [rows, in_features], what the rows stand for; `ValueError` for formats not known."""

def norm(
    shape: tuple[int, int],
    x: _Rows,
    weight: _Rows,
    epsilon: float,
    centred: bool,
    out: _Rows,
    stream: tuple[float, _Rows, _Rows] | None = None,
) -> None:
    """RMSNorm of x, `centred` a layer norm: [tokens, hidden] as `shape` says.

    Weight is one row, of any dtype, and out is of x's. `stream` is the factor of x, and the residual stream before and
    after, of x's dtype: `factor * x` plus the one is written to the other, and that is normalised.
    """

def activation(kind: str, gated: bool, shape: tuple[int, int], x: _Rows, out: _Rows) -> None:
    """`out = kind(gate) * up`: shape is that of out, [tokens, width]; a row of x is the gate, then up.

    Not gated: `out = kind(x)`. `ValueError` unless the kind is "silu", "gelu" or "gelu_tanh".
    """

def experts(
    tokens: int,
    x: _Rows,
    logits: _Rows,
    router: tuple[int, int, bool],
    own: tuple[int, int],
    kind: str | tuple[float, float],
    matrices: list[tuple[Linear, int, _Rows | None]],
    out: _Rows,
) -> None:
    """`out = sum of weight * down(kind(gate(x)) * up(x))` over the experts that each token takes.

    x and out [tokens, hidden], logits [tokens, experts], of one dtype. `router` is the number of experts, how many of
    them a token takes, and whether their weights add up to 1; `own` the first of those whose matrices are here, and
    their number. `matrices` are the gate, up and down of all these, one expert below the other, where they lie packed,
    and their biases [experts here, outputs], which may be left out. `kind` is that of `activation`, or the limit and
    alpha of `(up + 1) * gate * sigmoid(alpha * gate)`, where the gate is up to the limit, and up from -limit to it.
    `ValueError` for sizes that do not fit, or of which an expert's outputs are no multiple of 32.
    """

def add(shape: tuple[int, int], x: _Rows, residual: _Rows, factor: float, out: _Rows) -> None:
    """`out = factor * x + residual`, rounded once: all three [tokens, width] as `shape` says, of one dtype."""

def add_bias(shape: tuple[int, int], x: _Rows, bias: _Rows) -> None:
    """Add the bias, one row of any dtype, to each row of x in place: [tokens, width] as `shape` says."""

def scale_and_cap(shape: tuple[int, int], x: _Rows, factor: float, cap: float | None = None) -> None:
    """`x = factor * x` in place, with a cap `x = cap * tanh(factor * x / cap)`: [tokens, width] as `shape` says."""

def rope_and_kv_write(
    shape: tuple[int, int],
    heads: tuple[_Rows, _Rows, _Rows],
    positions: int,
    cos_sin: tuple[int, int, int],
    slot_mapping: int,
    cache: _Cache,
    norm: tuple[_Rows, _Rows, float] | None = None,
    query_scales: int | None = None,
) -> None:
    """Rotate query and key in place, then write key and value to the cells of the cache, rounded to its dtype.

    `shape` is tokens and query heads; `heads` query, key and value, of one dtype, a token's heads a row. Positions and
    slot mapping are int32 [tokens]; `cos_sin` is float32 [positions, rotary_size], its address and its shape: the first
    so many dimensions of a head are rotated. `IndexError` where a position is not in it, or a cell not in the cache; a
    negative cell writes nothing. `ValueError` for an odd rotary_size, or one of more than head_dim.

    `norm` is the weights of query and key, one row of head_dim each, of any dtype, and epsilon: RMSNorm of each head,
    rounded to its dtype, before the rotation. `query_scales` is the address of float32 [positions]: the rotated query
    is multiplied by that of its position.
    """

def paged_attention(
    shape: tuple[int, int],
    query: _Rows,
    cache: _Cache,
    batch: _Batch,
    layer: tuple[float, int | None, float | None, int | None],
    out: _Rows,
) -> None:
    """Causal attention: `shape` is tokens and query heads; query and out are of one dtype, a token's heads a row.

    `layer` is the scale of scores, the window (how many positions a token sees, its own included; None: all), the soft
    cap (a score becomes `cap * tanh(score / cap)`; None: as it is) and the address of sinks, float32 [heads], each the
    score of one more position whose value is zeros (None: there are none). `ValueError` for a window of 0.

    Scores, weights and sums are float32, in an order that a token's position alone decides. Where all is bfloat16,
    heads are multiples of 32, there is neither window nor cap, and the machine has AMX, weights are rounded to
    bfloat16, and so summed up. `IndexError` where the batch's numbers do not name what is there.
    """

def score_blocks(
    shape: tuple[int, int],
    query: _Rows,
    cache: _Cache,
    batch: _Batch,
    is_sparse: int,
    scale: float,
    summaries: tuple[str, int, int],
    budget: tuple[int, int, int],
    shares: int,
) -> None:
    """Score the blocks that sparse rows choose from; `shape` is tokens and query heads, and of the cache keys are read.

    `is_sparse` is int32 [rows], 0 or 1. `summaries` is "mean" or "bounds", the address of vectors
    [num_blocks, kv_heads, parts, head_dim] of the cache's dtype, and that of uint8 [num_blocks], 1 where a block has
    its own; both are written to. `budget` is how many first blocks, best ones and last ones a row keeps.

    A row chooses if it is sparse, has one token, and has more blocks than the budget. Its candidates are its blocks
    without the first and the last ones. `shares` is float32 [rows, max_blocks]: column i of such a row gets the share
    of candidate i, all other entries are left as they are. `ValueError` for a budget without a last block, `IndexError`
    where the batch's numbers do not name what is there.
    """

def select_blocks(
    tokens: int,
    shares: int,
    cache: _Cache,
    batch: _Batch,
    is_sparse: int,
    budget: tuple[int, int, int],
    out: tuple[int, int, int],
) -> None:
    """Choose the blocks that sparse rows attend to, by what `score_blocks` has written; nothing of the cache is read.

    `out` has the addresses of a batch whose slots are its rows, int32: block tables [rows, max_blocks], slots and
    sequence lengths. It raises what `score_blocks` raises.
    """

def copy_blocks(cache: _Cache, copies: int, num_copies: int) -> None:
    """Copy blocks in both caches, in order; copies int32 [num_copies, 2]. `IndexError` where there is no such block."""

def sample(
    num_samples: int,
    shape: tuple[int, int],
    logits: _Rows,
    rows: int | None,
    parameters: tuple[int, int, int, int, int] | None,
    out: int,
) -> None:
    """Choose a token for each sample, to out int32 [num_samples]; `shape` is that of the logits, [rows, vocabulary].

    `rows` is int32 [num_samples], the row of each; None: its own. `parameters` are float32 temperatures, int32 top-k,
    float32 top-p and min-p, and float32 uniform numbers, each [num_samples]; None: all take the first of the greatest.
    The token is -1 where no logit is above minus infinity.
    """

def edit_logits(
    num_samples: int,
    shape: tuple[int, int],
    logits: _Rows,
    rows: int,
    edits: _Edits,
    masks: _Masks | None,
    out: int,
) -> None:
    """Copy a row of logits for each sample to out, float32 [num_samples, vocabulary], mask it, then edit it.

    `shape` is that of the logits, [rows, vocabulary]; `rows` is int32 [num_samples]. `IndexError` where a row, a mask
    or a token is not there, or starts do not rise, with nothing written.
    """

def logprobs(
    num_samples: int,
    shape: tuple[int, int],
    logits: _Rows,
    rows: int,
    chosen: int,
    num_top: int,
    out: tuple[int, int, int],
) -> None:
    """Log-probabilities of each sample's token, chosen int32 [num_samples], and of its row's likeliest tokens.

    `shape` and `rows` as in `edit_logits`. Out are ids, int32, and values, float32, both [num_samples, 1 + num_top],
    and ranks, int32 [num_samples]. `ValueError` where num_top is more than the vocabulary; `IndexError` as above.
    """

@final
class LogitsStates:
    """What is known of each slot's tokens, and which logits they change; for any device, as it is all on the host.

    Token ids are int32 in any buffer, or their bytes. Numbers come back as the bytes of int32 or float32, writable, for
    `numpy.frombuffer`. A slot is plain at first: it has no tokens and no edits. `ValueError` where a call does not fit;
    it has changed nothing then, but `catch_up`, which may have gone through some rows.
    """

    def __new__(cls, num_slots: int, vocab_size: int) -> LogitsStates:
        """`vocab_size` is that of the logits."""
    def initialise(
        self,
        slot: int,
        tokens: _Numbers,
        num_prompt_tokens: int,
        *,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        bias_ids: _Numbers | None = None,
        bias_values: _Numbers | None = None,
        bad_words: Sequence[_Numbers] | None = None,
        min_tokens: int = 0,
        stop_token_ids: _Numbers | None = None,
        thinking_budget: int = 0,
        thinking_starts: Sequence[_Numbers] | None = None,
        thinking_ends: Sequence[_Numbers] | None = None,
    ) -> None:
        """The slot has a state from now on: all its tokens, of which the first are its prompt, and what it asked for.

        Each of `bad_words` bans its last token where the output ends with the others; `stop_token_ids` are banned as
        long as the output has fewer than `min_tokens`. Both may name what is beyond the vocabulary, which nothing can
        choose.

        With `thinking_ends` reasoning is bounded. It begins at the output's beginning if one of `thinking_starts` ends
        the prompt, or if there is none; otherwise behind the one that the output begins with. After `thinking_budget`
        tokens of it the first of the ends is forced, or the rest of one that has begun: its bias is infinite.
        """
    def clear(self, slots: _Numbers) -> None:
        """These slots are plain from now on."""
    def copy(self, pairs: _Numbers) -> None:
        """Copy slots by pairs of (source, destination), one after the other; a copy of a plain slot is plain."""
    def catch_up(
        self,
        slots: _Numbers,
        query_starts: _Numbers,
        sequence_lengths: _Numbers,
        tokens: _Numbers,
        sampled_starts: _Numbers,
        logits_rows: _Numbers,
    ) -> bytearray:
        """Learn the tokens of a step's rows up to each row's first sampled position; the sections of its plan.

        Gives a byte a row: 0 where nothing is sampled or the slot is plain; 1 where the slot now knows exactly the
        tokens up to that position; 2 where it is stale: a token is -1 and not known yet, or more is known than that.
        Where a token of the output differs from what is known, that is forgotten from there on. `ValueError` where a
        row begins beyond what is known.
        """
    def push(self, slots: _Numbers, starts: _Numbers, tokens: _Numbers) -> None:
        """Append tokens to slots, those from `starts[i]` to `starts[i + 1]` to slot i; plain ones do not keep them."""
    def edits(self, slots: _Numbers, draft_starts: _Numbers, drafts: _Numbers) -> _Columns:
        """What changes at each position to be sampled: the columns of `LogitsEdits`, ids ascending and each once.

        Position i is that after the tokens of slot i and the drafts from `draft_starts[i]` to `draft_starts[i + 1]`,
        which count as output. A slot may come several times.
        """
    def length(self, slot: int) -> int:
        """How many tokens are known; 0 where the slot is plain."""
    def tokens(self, slot: int, start: int) -> bytearray:
        """The known tokens from a position on, int32."""

@final
class Graph:
    """The ops that one thread has called, to be run again; and memory for what they write. See `graph.py`."""

    def __new__(cls) -> Graph: ...
    def begin_capture(self) -> None:
        """Record this thread's ops from now on. `RuntimeError` where it records already."""
    def end_capture(self) -> None:
        """Let this thread's ops compute again. `RuntimeError` where they are not recorded here."""
    def lend(self, num_bytes: int) -> Lease:
        """Memory of the graph's own, which nobody else has. `MemoryError` where there is none."""
    def owns(self, address: int) -> bool:
        """Whether there is memory of the graph's own."""
    def replay(self, num_tokens: int, num_rows: int) -> None:
        """Run the ops in order on the first so many tokens and sequences.

        `ValueError` where one has room for fewer; `IndexError` from an op, the ones before it having run.
        """
    @property
    def num_ops(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """How much memory has been lent at most."""

@final
class OpTimes:
    """When the ops of a thread run and how long, by name, for a profile; where none is made, nothing is timed.

    An op has the name of its function here or, with packed matrices, in `pyllm_kernels`. Two that run together have one
    name, such as "norm + packed_linear". What ran before `begin` and after `end` is not in it.
    """

    def __new__(cls, max_runs: int) -> OpTimes:
        """Of the runs one by one, the first `max_runs` are kept, in 24 bytes each."""
    def begin(self) -> None:
        """Time this thread's ops from now on. `RuntimeError` where it captures a graph, or times them already."""
    def end(self) -> None:
        """Let this thread's ops run as before. `RuntimeError` where they are not timed here."""
    def totals(self) -> list[tuple[str, int, int]]:
        """Of each name: how often it has run, and the nanoseconds that all its runs took."""
    def runs(self) -> list[tuple[int, int, int]]:
        """One by one, in order: the index of its name in `totals`, when it began (Unix time) and took, nanoseconds."""

@final
class Lease:
    """Some bytes of a graph's memory, writable as a buffer, which are lent to others when this is garbage."""

def set_num_threads(num_threads: int) -> None:
    """From now on compute with so many threads, the caller's included; 1 at first. `ValueError` beyond 1 to 1,024."""

def stay_awake(awake: bool) -> None:
    """From now on let the threads wait for the next op awake, or not, as at first."""

def forget_threads() -> None:
    """Begin anew with one thread: for a process that was forked, which has none of the others."""

def num_threads() -> int:
    """How many threads compute."""

def instruction_set() -> str:
    """What the kernels use of this machine: "portable", "avx2", "avx512_vnni", "avx512_bf16" or "amx"."""
