"""The forward pass: from a plan's tokens to hidden states, and from some of these to logits; by graphs if possible.

Knows neither loading nor sampling.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from pyllm_kernels import AttentionMetadata, AttentionShape, CaptureError, Kernels
from torch import Tensor

from pyllm.workers.cpu_graph import StepGraph
from pyllm.workers.cuda_graphs import Capture, DecodeGraphs, DecodeInputs, capture_sizes, is_decode
from pyllm.workers.decoder import Decoder
from pyllm.workers.step.batch import Batch
from pyllm.workers.step.forward_context import AttentionHook, ForwardContext
from pyllm.workers.step.kv_cache import KVCache
from pyllm.workers.step.position_tables import PositionTables
from pyllm.workers.step.slots import Slots

logger = logging.getLogger(__name__)

# Fewer than `TIMES_EXPECTED` of `core/faults/stalls.py`, so that the bound of any step is longer than the timed step.
TIMED_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest step. Steps above a budget that is raised later run without graphs."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class ForwardPass:
    """A loaded model over a KV cache. `shape` is the shape of its attention."""

    def __init__(
        self,
        model: Decoder,
        *,
        kernels: Kernels,
        kv_cache: KVCache,
        slots: Slots,
        position_tables: PositionTables,
        shape: AttentionShape,
        limits: Limits,
        batch_invariant: bool,
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._kv_cache = kv_cache
        self._slots = slots
        self._position_tables = position_tables
        self._device = position_tables.unrotated.device
        self._shape = shape
        self._limits = limits
        self._batch_invariant = batch_invariant
        self._hooks: tuple[AttentionHook, ...] = ()
        self._decode_graphs: DecodeGraphs | None = None
        self._step_graph: StepGraph | None = None

    def add_hook(self, hook: AttentionHook) -> None:
        """Call `hook` in every layer of every step from now on. Hooks are Python, so steps run without graphs."""
        self._hooks += (hook,)

    def capture_decodes(self, capture: Capture) -> None:
        """Capture the pass over decode batches of some sizes, for steps to replay."""
        sizes = capture_sizes(self._limits.max_num_seqs)
        self._decode_graphs = DecodeGraphs(self._decode, sizes, self._device, capture)

    def capture_step(self) -> None:
        """Capture the pass over any step as one call on a CPU; not if an op of it is torch's, which is logged."""

        def context(attention: AttentionMetadata, positions: Tensor, slot_mapping: Tensor) -> ForwardContext:
            return ForwardContext(
                self._kernels, self._kv_cache, attention, positions, slot_mapping, self._position_tables
            )

        limits = self._limits
        sizes = limits.max_num_batched_tokens, limits.max_num_seqs
        try:
            self._step_graph = StepGraph(self._model, context, self._slots.block_tables, *sizes)
        except CaptureError as error:
            logger.warning("steps run without a graph, which costs some time for each op: %s", error)

    def hidden(self, batch: Batch) -> Tensor:
        """Hidden states of the plan's tokens, [tokens, hidden_size]; the next call may overwrite them."""
        graphs = self._decode_graphs
        if graphs is not None and not self._hooks and batch.num_rows <= graphs.max_rows and is_decode(batch.host):
            return graphs.run(batch.host)
        tokens = self._slots.known_tokens(batch)
        if self._step_graph is not None and not self._hooks and self._step_graph.has_room(batch):
            return self._step_graph.hidden(tokens, batch)
        sections = batch.device
        attention = self._attention(
            (sections.slots, sections.query_starts, sections.sequence_lengths),
            batch.max_query_length,
            batch.max_sequence_length,
            batch.num_tokens,
        )
        return self._model(tokens, self._context(attention, sections.positions, sections.slot_mapping))

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor | None:
        """Logits of some rows of the hidden states, [rows, vocab_size]; None on all ranks but the first.

        The next call may overwrite them.
        """
        if self._step_graph is not None and len(rows) <= self._limits.max_num_seqs:
            return self._step_graph.logits(hidden, rows)
        return self._model.logits(hidden[rows])

    def compute_largest(self) -> Tensor | None:
        """Compute the largest step, with the whole budget of tokens; returns logits for every slot."""
        lengths = self._lengths(self._limits.max_num_batched_tokens)
        return self._compute_any(lengths, max(lengths))

    def compute_mixed(self) -> Tensor | None:
        """Compute a small mixed step, which launches every kernel; returns some logits."""
        longest = self._limits.max_model_len
        return self._compute_any([min(2, longest), 1], longest)

    def time_tokens(self, clock: Callable[[], float]) -> float:
        """Seconds per token in a small step without graphs: an upper bound for larger steps."""
        started = clock()
        lengths = self._lengths(TIMED_TOKENS)
        self._compute_any(lengths, max(lengths))
        return (clock() - started) / TIMED_TOKENS

    def _lengths(self, num_tokens: int) -> list[int]:
        """Lengths of prompts that have `num_tokens` together, or as many as a step may have."""
        limits = self._limits
        num_tokens = min(num_tokens, limits.max_num_seqs * limits.max_model_len)
        return [min(limits.max_model_len, num_tokens - start) for start in range(0, num_tokens, limits.max_model_len)]

    def _compute_any(self, lengths: list[int], max_sequence_length: int) -> Tensor | None:
        """Compute prompts of these lengths; returns logits of some tokens.

        It reads the first block of the cache again and again, and writes nothing.
        """
        starts = np.cumsum([0, *lengths])
        num_tokens = int(starts[-1])
        rows = (self._ints(np.zeros(len(lengths))), self._ints(starts), self._ints(lengths))
        tables = torch.zeros_like(self._slots.block_tables)
        attention = self._attention(rows, max(lengths), max_sequence_length, num_tokens, tables)
        positions = self._ints(np.concatenate([np.arange(length) for length in lengths]))
        context = self._context(attention, positions, self._ints(np.full(num_tokens, -1)))
        hidden = self._model(self._ints(np.zeros(num_tokens)), context)
        return self._model.logits(hidden[: self._limits.max_num_seqs])

    def _decode(self, inputs: DecodeInputs) -> Tensor:
        """The pass that a graph captures: one token of each row, at any length."""
        rows = (inputs.slots, inputs.query_starts, inputs.sequence_lengths)
        attention = self._attention(rows, 1, self._limits.max_model_len, len(inputs.slots))
        tokens = torch.where(inputs.tokens < 0, self._slots.last_tokens[inputs.slots], inputs.tokens)
        return self._model(tokens, self._context(attention, inputs.positions, inputs.slot_mapping))

    def _attention(
        self,
        rows: tuple[Tensor, Tensor, Tensor],
        max_query_length: int,
        max_sequence_length: int,
        num_tokens: int,
        block_tables: Tensor | None = None,
    ) -> AttentionMetadata:
        """Attention metadata of `rows`: their slots, query starts and sequence lengths."""
        slots, query_starts, sequence_lengths = rows
        metadata = AttentionMetadata(
            block_tables=self._slots.block_tables if block_tables is None else block_tables,
            slots=slots,
            query_starts=query_starts,
            sequence_lengths=sequence_lengths,
            max_query_length=max_query_length,
            max_sequence_length=max_sequence_length,
            num_tokens=num_tokens,
            batch_invariant=self._batch_invariant,
        )
        return self._kernels.plan_attention(metadata, self._shape)

    def _context(self, attention: AttentionMetadata, positions: Tensor, slot_mapping: Tensor) -> ForwardContext:
        return ForwardContext(
            self._kernels, self._kv_cache, attention, positions, slot_mapping, self._position_tables, self._hooks
        )

    def _ints(self, values: npt.ArrayLike) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.int32)).to(self._device)
