"""The kernels for CPUs, written in Rust: `kernels/src`.

Its callers are `matrix_rows.py`, `graph.py` and the ops of `ops/`, and of `RankExchange` pyllm's workers.

Arguments are arrays, and dataclasses that are read by the names of their fields. `ValueError` names an argument whose
shape, dtype or strides do not fit. Nothing else may write to the arrays during the call. The interpreter lock is
released while a kernel works. Calls from several threads wait for one another, as there is one pool of threads.

On a thread that captures a `Graph`, ops are recorded instead of run: `Linear.run`, `Linear.unpack_rows` and the
functions of `ops/`. The graph keeps their arrays alive.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy.typing as npt

from pyllm_kernels.matrix_rows import MatrixRows
from pyllm_kernels.tensors import Tensor

__all__ = [
    "Graph",
    "Lease",
    "Linear",
    "LogitsStates",
    "OpTimes",
    "RankExchange",
    "copy_rows",
    "forget_threads",
    "instruction_set",
    "num_threads",
    "ops",
    "read_rows",
    "set_num_threads",
    "stay_awake",
    "use_instruction_set",
]

ops: Any
"""The functions of the ops: `ops/` documents each beside its call."""
_Numbers: TypeAlias = npt.NDArray[Any] | bytes | bytearray
"""Numbers in a row: int32, or float32 where it says so."""
_Bytes: TypeAlias = npt.NDArray[Any] | bytearray
"""Contiguous uint8."""
_Columns: TypeAlias = tuple[bytearray, bytearray, bytearray, bytearray, bytearray]

@final
class Linear:
    """The layout of a packed matrix [out_features, in_features]: panels of 32 outputs, the last padded with zeros.

    Every output is one chain of float32 operations, rounded once: the same for any number of rows and threads.

    - Floats: the chain is the sum over the inputs, in an order that follows from the matrix's shape and from the
      instruction set alone.
    - GGUF's groups of integers: each group of 32 features of the input becomes integers, too, -127 to 127 with a
      scale. Integer products are exact; the chain is over the groups in their order,
      `sum = fma(input scale * weight scale, product, sum)`, then for formats with minimums
      `sum = fma(minimum, input scale * sum of the input's integers, sum)`; "q2_k", "q3_k", "q6_k", "iq2_xs", "iq2_s"
      and "iq1_m" have two scales a group, and do this for each half. The result is the same on all machines.
    - "int8": a row of the matrix is integers from -127 to 127 with a float32 scale, its largest magnitude / 127;
      rows of "int8" with one scale each stay unchanged, -128 included. A row of the input is
      `scale * (128 * high + low)` with high from -127 to 127 and low from -64 to 63. Integer products are exact; an
      output is `(input scale * weight scale) * fma(128, product of high, product of low)`, the same on all machines.
    - "int8" from blocks stays in 4 bits. With a row's scale s, its largest possible magnitude / 127, a group's
      D = round(256 * scale / s) and M = round(256 * minimum / s) (q4_0's minimum is -8 * scale) turn an integer q into
      `floor((D * q + M + 128) / 256)`.
    """

    def __new__(cls, format: str, dtype: str, in_features: int, out_features: int, blocks: str | None = None) -> Linear:
        """Describe a matrix. `dtype`, of inputs and outputs, is "float32", "bfloat16" or "float16".

        `format` is `dtype`, one of `matrix_rows.GGUF_BLOCKS`, or "int8", which is made from `dtype`, or from `blocks`,
        "q4_0" or "q4_1". Raises `ValueError` for other formats, for no features, for more than 131,072 inputs of
        "int8", or if blocks do not divide the inputs.
        """
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def blocks(self) -> str | None:
        """The blocks of the source of "int8", if any."""
    @property
    def packed_bytes(self) -> int:
        """Bytes of memory of the packed matrix."""
    def pack(self, parts: list[MatrixRows], packed: Tensor) -> int | None:
        """Pack the matrix from its rows, the parts one below the other, on all threads; packed is uint8 [packed_bytes].

        Returns the first row with numbers that are not finite. `ValueError` if there are not `out_features` rows, or
        the format cannot be made of a row's source: blocks take blocks of their format, floats and "int8" take any.
        """
    def unpack_rows(self, packed: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write the rows of the matrix with the indices `rows`, int32 [n], to out [n, in_features] of the dtype.

        `packed` has the dtype for floats, and is uint8 in other formats. `IndexError` if an index has no row; then
        nothing is written.
        """
    def run(self, x: Tensor, packed: Tensor, out: Tensor) -> None:
        """Compute `out = x @ weight.T`: x [n, in_features], contiguous, and out [n, out_features], of the dtype."""
    def run_heads(self, x: Tensor, packed: Tensor, out: Tensor) -> None:
        """Compute `ops/head_products.py`: the matrix is those of all heads, of floats, each a multiple of 32 outputs.

        x [n, heads, first + in_features]; out [n, heads, out_features / heads], with `first` more to keep these.
        """

def copy_rows(rows: MatrixRows, out: Tensor) -> None:
    """Write the bytes of the rows to out, uint8 [rows, bytes per row]; a row of zeros is zeros."""

def read_rows(rows: MatrixRows, out: Tensor) -> None:
    """Write the numbers of the rows to out, float32 [rows, in_features]."""

@final
class LogitsStates:
    """The known tokens of each slot, and the edits of logits that follow from them; on the host, for any device.

    Token ids are int32 in any buffer, or their bytes. Results are the bytes of int32 or float32, writable, for
    `numpy.frombuffer`. A slot is plain at first: it has no tokens and no edits. `ValueError` if arguments do not fit;
    then nothing has changed, except for some rows in `catch_up`.
    """

    def __new__(cls, num_slots: int, vocab_size: int) -> LogitsStates:
        """Make plain slots; `vocab_size` is that of the logits."""
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
        """Initialise a slot with rules and tokens, of which the first are its prompt.

        Each of `bad_words` bans its last token if the output ends with its other tokens; `stop_token_ids` are banned as
        long as the output has fewer than `min_tokens`. Both may have ids beyond the vocabulary, which no sample can
        choose.

        With `thinking_ends` reasoning is limited. It begins with the output if one of `thinking_starts` ends the
        prompt, or if there are none; otherwise after the start that the output begins with. After `thinking_budget`
        tokens of reasoning the first of the ends is forced, or the rest of one that has begun: its bias is infinite.
        """
    def clear(self, slots: _Numbers) -> None:
        """Make the slots plain."""
    def copy(self, pairs: _Numbers) -> None:
        """Copy slots in the order of the pairs (source, destination), as one gather; a plain slot's copy is plain."""
    def catch_up(
        self,
        slots: _Numbers,
        query_starts: _Numbers,
        sequence_lengths: _Numbers,
        tokens: _Numbers,
        sampled_starts: _Numbers,
        logits_rows: _Numbers,
    ) -> bytearray:
        """Add a step's tokens to the rows' slots, up to each row's first sampled position; the sections of its plan.

        Returns a byte a row: 0 if nothing is sampled or the slot is plain; 1 if the slot now has exactly the tokens up
        to that position; 2 if it is stale: a token is -1 and not known yet, or it has more tokens. If a token of the
        output differs from the known one, known tokens are dropped from there on. `ValueError` if a row begins beyond
        the known tokens.
        """
    def push(self, slots: _Numbers, starts: _Numbers, tokens: _Numbers) -> None:
        """Append tokens to slots: `starts[i]` to `starts[i + 1]` to slot i. Plain ones do not keep them."""
    def edits(self, slots: _Numbers, draft_starts: _Numbers, drafts: _Numbers) -> _Columns:
        """The edits of logits at each position to sample: the columns of `LogitsEdits`, ids ascending and each once.

        Position i is after the tokens of slot i and the drafts from `draft_starts[i]` to `draft_starts[i + 1]`, which
        count as output. A slot may occur several times.
        """
    def length(self, slot: int) -> int:
        """The number of known tokens; 0 if the slot is plain."""
    def tokens(self, slot: int, start: int) -> bytearray:
        """The known tokens from a position on, int32."""

@final
class Graph:
    """Recorded ops, to be replayed, and the memory of their outputs. See `graph.py`."""

    def __new__(cls) -> Graph: ...
    def begin_capture(self) -> None:
        """Record this thread's ops from now on. `RuntimeError` if it records already."""
    def end_capture(self) -> None:
        """Let this thread's ops compute again. `RuntimeError` if this graph does not record them."""
    def lend(self, num_bytes: int) -> Lease:
        """Lend an unused piece of the graph's memory. `MemoryError` if memory has run out."""
    def owns(self, address: int) -> bool:
        """Whether an address belongs to the graph's memory."""
    def replay(self, num_tokens: int, num_rows: int) -> None:
        """Run every op in order, for the first `num_tokens` tokens and `num_rows` sequences.

        `ValueError` if an op has room for fewer; `IndexError` from an op with a wrong index, after those before it.
        """
    @property
    def num_ops(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces of memory."""

@final
class OpTimes:
    """Totals of all ops of a thread by name, and the first single runs, between `begin` and `end`, for a profile.

    An op has the name of its function here or, with packed matrices, in `pyllm_kernels`. Two that run together have one
    name, such as "norm + packed_linear". Without a profile nothing is timed.
    """

    def __new__(cls, max_runs: int) -> OpTimes:
        """Keep only the first `max_runs` single runs, in 24 bytes each; totals include all."""
    def begin(self) -> None:
        """Time this thread's ops from now on. `RuntimeError` if it captures a graph, or times them already."""
    def end(self) -> None:
        """Let this thread's ops run as before. `RuntimeError` if this object does not time them."""
    def totals(self) -> list[tuple[str, int, int]]:
        """Each name with its number of runs, and the nanoseconds of all its runs."""
    def runs(self) -> list[tuple[int, int, int]]:
        """Single runs in order: index of the name in `totals`, beginning (Unix time) and duration in nanoseconds."""

@final
class Lease:
    """A piece of a graph's memory, a writable buffer, returned when Python drops this."""

@final
class RankExchange:
    """One of the ranks of a model, on CPUs: `num_stages` pipeline stages of `size` ranks each, in the order of `rank`.

    The collectives are those of a stage. All its ranks call the same ones, in the same order, with equal sizes; else
    `ValueError`. Arguments are contiguous uint8, which nothing else accesses during the call. The interpreter lock is
    released while a rank waits. `ConnectionError` if an awaited rank has ended, `TimeoutError` if it did not come
    within `timeout` seconds. After an error every later call raises `RuntimeError`.
    """

    @staticmethod
    def in_memory(descriptor: int, rank: int, size: int, num_stages: int, timeout: float) -> RankExchange:
        """Exchange through a file in memory (`os.memfd_create`), empty at first, the same for all ranks.

        The descriptor may be closed afterwards. Nothing may be exchanged before all ranks have called this.
        """
    @staticmethod
    def over_tcp(
        sockets: Sequence[tuple[int, int]], rank: int, size: int, num_stages: int, timeout: float
    ) -> RankExchange:
        """Exchange over connected TCP sockets, whose descriptors are this object's from now on.

        There is one to each rank of the same stage, and to each of the same index in the stages before and after.
        """
    def all_gather(self, part: _Bytes, whole: _Bytes) -> None:
        """Write the parts of all ranks to `whole`, in rank order."""
    def gather(self, part: _Bytes, row_bytes: int, whole: _Bytes | None) -> None:
        """Write the rows of all ranks, of `row_bytes` each, side by side in rank order, to `whole` of the first rank.

        The other ranks have none.
        """
    def broadcast(self, part: _Bytes) -> None:
        """Overwrite `part` with that of the first rank."""
    def sum(self, dtype: str, part: _Bytes) -> None:
        """Overwrite `part`, "float32" or "bfloat16", with the sum of all ranks' parts.

        It is in rank order, and rounded to nearest even after each addition.
        """
    def allocate_messages(self, num_messages: int, max_bytes: int) -> None:
        """Make room for as many messages to the next stage, on all ranks with the same numbers; call it once."""
    def send(self, parts: Sequence[_Bytes]) -> None:
        """Send a message to the next stage, without waiting for it unless there is room for no more messages."""
    def receive(self, parts: Sequence[_Bytes]) -> None:
        """Wait for the next message of the stage before, and write it to the parts, which have its size together."""

def set_num_threads(num_threads: int) -> None:
    """Set the number of threads, 1 to 1,024, including the caller's; 1 at first. `ValueError` for other numbers."""

def stay_awake(awake: bool) -> None:
    """Set whether threads wait for the next op awake; false at first."""

def forget_threads() -> None:
    """Start with a new pool of one thread, in a forked process, which has none of the others."""

def num_threads() -> int:
    """The number of threads."""

def instruction_set() -> str:
    """The instruction set of the kernels, by a name of `--instruction-set`."""

def use_instruction_set(name: str) -> None:
    """Choose the instruction set of this process, before any kernel runs and before `instruction_set`.

    Raises:
        ValueError: the processor lacks it, or this process uses another one already.
    """
