"""The forward pass: a plan's tokens to hidden states, and some hidden states to logits; with graphs if possible.

Knows neither loading nor sampling.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pyllm_kernels import AttentionMetadata, CaptureError, Kernels, StateRows
from pyllm_kernels.ops.state_tasks import plan_states
from pyllm_kernels.tensors import Tensor

from pyllm.workers.causal_model import CausalModel, joined
from pyllm.workers.cpu_graph import StepGraph
from pyllm.workers.devices.device import Device
from pyllm.workers.kv.kv_cache import KVCache
from pyllm.workers.kv.state_cache import StateCache
from pyllm.workers.layers.forward_context import AttentionHook, ForwardContext
from pyllm.workers.step.attention_batch import AttentionBatch, AttentionGroup, Chunk, Ints
from pyllm.workers.step.batch import Batch
from pyllm.workers.step.kv_selector import KVSelector
from pyllm.workers.step.position_tables import PositionTables
from pyllm.workers.step.slots import Slots
from pyllm.workers.step.step_rows import StepRows, split_rows

if TYPE_CHECKING:
    from pyllm.workers.cuda_graphs import Capture, CaptureBudget, CapturedSteps, StepInputs

logger = logging.getLogger(__name__)

Metadata = tuple[AttentionMetadata, ...]  # of each group of layers

# Fewer than `TIMES_EXPECTED` in `core/faults/stalls.py`, so that the bound of any step is longer than the timed step.
TIMED_TOKENS = 8
CHECKED_SEQUENCES = 2
"""Sequences that `compute_chunks` has blocks for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest step. If the budget is raised later, larger steps run without graphs."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class ForwardPass:
    """A loaded model over a KV cache. `prepare_attention` is the attention backend's `prepare`, called for each group.

    A `selector` chooses the blocks that rows of a plan attend to; steps without a plan attend to all blocks.

    A pipeline stage after the first reads the output of the stage before from `incoming`, [tokens, width], at a fixed
    address. Graphs hold the pass alone, and not the exchange between stages: messages have the size of the
    step, not of the graph, and a stage that waits for another inside a graph could do no other work meanwhile.
    """

    def __init__(
        self,
        model: CausalModel,
        *,
        kernels: Kernels,
        kv_cache: KVCache,
        slots: Slots,
        position_tables: PositionTables,
        prepare_attention: Callable[[AttentionBatch, AttentionGroup], AttentionMetadata],
        groups: tuple[AttentionGroup, ...],
        limits: Limits,
        device: Device,
        incoming: Tensor | None = None,
        selector: KVSelector | None = None,
        state_cache: StateCache | None = None,
    ) -> None:
        self._model = model
        self._incoming = incoming
        self._selector = selector
        self._kernels = kernels
        self._kv_cache = kv_cache
        self._state_cache = state_cache
        self._slots = slots
        self._position_tables = position_tables
        self._device = device
        self._prepare_attention = prepare_attention
        self._groups = groups
        self._limits = limits
        self._hooks: tuple[AttentionHook, ...] = ()
        self._captured: CapturedSteps | None = None
        self._step_graph: StepGraph | None = None

    def add_hook(self, hook: AttentionHook) -> None:
        """Call `hook` in every layer of every later step. Hooks are Python, so these steps run without graphs."""
        self._hooks += (hook,)

    def capture_steps(self, capture: "Capture", budget: "CaptureBudget") -> None:
        """Capture the pass for decode steps of some sizes, then for mixed ones, for steps to replay.

        Sizes go from large to small, as long as the budget allows.
        """
        from pyllm.workers.cuda_graphs import CapturedSteps, decode_buckets, mixed_buckets

        limits = self._limits
        decodes = decode_buckets(limits.max_num_seqs)
        mixed = mixed_buckets(limits.max_num_batched_tokens, limits.max_num_seqs)
        self._captured = captured = CapturedSteps(
            self._prepare,
            self._forward_captured,
            [*decodes, *mixed],
            self._device,
            max_sequence_length=limits.max_model_len,
            num_groups=len(self._groups),
        )
        num_captured = 0
        for bucket in (*reversed(decodes), *reversed(mixed)):
            if not budget.is_left():
                break
            captured.capture(bucket, capture)
            num_captured += 1
        seconds, num_bytes = budget.spent()
        logger.info(
            "captured %d of %d decode steps, and %d of %d mixed steps; all graphs took %.1f s and %d MiB",
            min(num_captured, len(decodes)),
            len(decodes),
            max(num_captured - len(decodes), 0),
            len(mixed),
            seconds,
            num_bytes >> 20,
        )

    def capture_step(self) -> None:
        """Capture the pass for any step as one call on a CPU; log a warning if an op of torch prevents it."""

        def context(attention: Metadata, positions: Tensor, slot_mapping: Tensor, states: StateRows) -> ForwardContext:
            return ForwardContext(
                self._kernels,
                self._kv_cache,
                attention,
                positions,
                slot_mapping,
                self._position_tables,
                received=self._received(len(positions)),
                selector=self._selector,
                state_cache=self._state_cache,
                state_rows=states,
            )

        limits = self._limits
        max_rows = limits.max_num_seqs
        if self._selector is not None:  # It splits rows.
            max_rows += limits.max_num_batched_tokens
        if self._state_cache is not None:  # So do states that are kept, at most once a block and before the last token.
            max_rows += limits.max_num_seqs + limits.max_num_batched_tokens // self._kv_cache.block_size
        try:
            self._step_graph = StepGraph(
                self._model,
                self._prepare,
                context,
                max_tokens=limits.max_num_batched_tokens,
                max_rows=max_rows,
                max_logits=limits.max_num_seqs,
                num_groups=len(self._groups),
                device=self._device,
            )
        except CaptureError as error:
            logger.warning("steps run without a graph, which costs some time for each op: %s", error)

    def hidden(self, batch: Batch) -> Tensor:
        """Hidden states of the plan's tokens, [tokens, hidden_size]; the next call may overwrite them.

        A pipeline stage before the last one returns [tokens, width], for the next stage.
        """
        if self._captured is not None and not self._hooks and (bucket := self._captured.bucket_of(batch)) is not None:
            return self._captured.run(bucket, batch)
        if self._selector is None:
            return self._hidden(batch)
        rows = split_rows(batch, self._slots.prompt_lengths)
        self._selector.execute_begin(rows)
        hidden = self._hidden(batch, rows)
        self._selector.execute_finished()
        return hidden

    def _hidden(self, batch: Batch, split: StepRows | None = None) -> Tensor:
        """`hidden` without a CUDA graph; `split` replaces the rows."""
        tokens = self._slots.known_tokens(batch)
        if self._step_graph is not None and not self._hooks and self._step_graph.has_room(batch):
            return self._step_graph.hidden(tokens, batch, split)
        sections, host = batch.device, batch.host
        rows = AttentionBatch(
            host_query_starts=host.query_starts,
            host_sequence_lengths=host.sequence_lengths,
            query_starts=sections.query_starts,
            sequence_lengths=sections.sequence_lengths,
            slots=sections.slots,
            max_query_length=batch.max_query_length,
            max_sequence_length=batch.max_sequence_length,
            num_tokens=batch.num_tokens,
        )
        if split is not None and len(split.slots) != batch.num_rows:
            rows = replace(
                rows,
                host_query_starts=split.query_starts,
                host_sequence_lengths=split.sequence_lengths,
                query_starts=self._ints(split.query_starts),
                sequence_lengths=self._ints(split.sequence_lengths),
                slots=self._ints(split.slots),
            )
        attention = self._prepare(rows)
        slot_mapping = sections.slot_mapping.reshape(len(self._groups), -1)
        states = StateRows(rows.query_starts, sections.state_sources, sections.state_destinations)
        context = self._context(attention, sections.positions, slot_mapping, states)
        return joined(self._model(tokens, replace(context, selector=self._selector)), self._device)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor | None:
        """Logits of some rows of the hidden states, [rows, vocab_size]; None on all ranks but the first.

        The next call may overwrite them.
        """
        if self._step_graph is not None and len(rows) <= self._limits.max_num_seqs:
            return self._step_graph.logits(hidden, rows)
        return self.head(hidden[rows])

    def head(self, hidden: Tensor) -> Tensor | None:
        """Logits of all rows of `hidden`, op by op; on a GPU a graph can hold this."""
        return self._model.logits(hidden)

    def compute_largest(self) -> Tensor | None:
        """Compute the largest step, with the whole token budget; return logits for every slot."""
        lengths = self._lengths(self._limits.max_num_batched_tokens)
        return self._compute_any(lengths, max(lengths))

    def compute_mixed(self) -> Tensor | None:
        """Compute a small mixed step, which launches every kernel; return some logits."""
        longest = self._limits.max_model_len
        return self._compute_any([min(2, longest), 1], longest)

    def compute_chunks(self, chunks: Sequence[Chunk]) -> Tensor:
        """Hidden states [tokens, hidden_size] of one step over chunks, in their order.

        The cache must be used for nothing else. It has the same number of blocks for each group and each of
        `CHECKED_SEQUENCES` sequences. Their keys and values stay, so that a later call can continue a sequence.
        """
        num_groups, width = len(self._groups), self._groups[0].block_tables.shape[1]
        blocks = np.arange(self._kv_cache.num_blocks, dtype=np.int32).reshape(num_groups, CHECKED_SEQUENCES, -1)
        tables = np.zeros((num_groups, CHECKED_SEQUENCES, width), np.int32)
        tables[:, :, : blocks.shape[2]] = blocks[:, :, :width]
        slot_mapping = np.concatenate([self._slots_of(chunk, blocks[:, chunk.sequence]) for chunk in chunks], axis=1)
        ends = [chunk.start + len(chunk.tokens) for chunk in chunks]
        rows = self._rows([len(chunk.tokens) for chunk in chunks], ends, [chunk.sequence for chunk in chunks])
        tokens = np.concatenate([chunk.tokens for chunk in chunks])
        return self._compute(rows, [self._ints(table) for table in tables], tokens, slot_mapping)

    def _slots_of(self, chunk: Chunk, blocks: Ints) -> Ints:
        """The slot mapping [groups, tokens] of a chunk, from the blocks of its sequence [groups, blocks]."""
        positions, size = np.arange(chunk.start, chunk.start + len(chunk.tokens)), self._kv_cache.block_size
        slots: Ints = blocks[:, positions // size] * size + positions % size
        return slots

    def time_tokens(self, clock: Callable[[], float]) -> float:
        """Seconds per token in a small step without graphs: an upper bound for larger steps."""
        started = clock()
        lengths = self._lengths(TIMED_TOKENS)
        self._compute_any(lengths, max(lengths))
        return (clock() - started) / TIMED_TOKENS

    def _lengths(self, num_tokens: int) -> list[int]:
        """Lengths of prompts with `num_tokens` together, or the most that a step may have."""
        limits = self._limits
        num_tokens = min(num_tokens, limits.max_num_seqs * limits.max_model_len)
        return [min(limits.max_model_len, num_tokens - start) for start in range(0, num_tokens, limits.max_model_len)]

    def _compute_any(self, lengths: list[int], max_sequence_length: int) -> Tensor | None:
        """Compute prompts of these lengths; return logits of some tokens.

        All prompts read the first block of the cache, and write nothing.
        """
        rows = replace(self._rows(lengths, lengths, [0] * len(lengths)), max_sequence_length=max_sequence_length)
        tables = [self._device.zeros(group.block_tables.shape, "int32") for group in self._groups]
        nowhere = np.full((len(self._groups), rows.num_tokens), -1, np.int32)
        hidden = self._compute(rows, tables, np.zeros(rows.num_tokens, np.int32), nowhere)
        return self.head(hidden[: self._limits.max_num_seqs])

    def _rows(self, query_lengths: list[int], sequence_lengths: list[int], slots: list[int]) -> AttentionBatch:
        starts = np.cumsum([0, *query_lengths], dtype=np.int32)
        return AttentionBatch(
            host_query_starts=starts,
            host_sequence_lengths=np.array(sequence_lengths, np.int32),
            query_starts=self._ints(starts),
            sequence_lengths=self._ints(sequence_lengths),
            slots=self._ints(slots),
            max_query_length=max(query_lengths),
            max_sequence_length=max(sequence_lengths),
            num_tokens=int(starts[-1]),
        )

    def _compute(self, rows: AttentionBatch, tables: Sequence[Tensor], tokens: Ints, slot_mapping: Ints) -> Tensor:
        """Hidden states of a step without a plan; for each group a table [slots, max_blocks] and slots [tokens]."""
        groups = (replace(group, block_tables=table) for group, table in zip(self._groups, tables, strict=True))
        attention = tuple(self._prepare_attention(rows, group) for group in groups)
        lengths = zip(np.diff(rows.host_query_starts), rows.host_sequence_lengths, strict=True)
        positions = self._ints(np.concatenate([np.arange(end - length, end) for length, end in lengths]))
        nothing = self._ints(np.full(len(rows.host_sequence_lengths), -1))  # Each row begins a sequence.
        states = StateRows(rows.query_starts, nothing, nothing)
        context = self._context(attention, positions, self._ints(slot_mapping), states)
        return joined(self._model(self._ints(tokens), context), self._device)

    def _prepare(self, batch: AttentionBatch, captured: Metadata | None = None) -> Metadata:
        """The attention metadata of each group; `captured` is the metadata from the capture of the graph, to refill."""
        if captured is None:
            return tuple(self._prepare_attention(batch, group) for group in self._groups)
        pairs = zip(self._groups, captured, strict=True)
        return tuple(self._prepare_attention(replace(batch, captured=before), group) for group, before in pairs)

    def _forward_captured(self, inputs: "StepInputs[Tensor]", attention: Metadata) -> Tensor:
        """The pass that graphs capture."""
        tokens = self._slots.last_tokens[inputs.token_slots].where(inputs.tokens < 0, inputs.tokens)
        states = StateRows(inputs.query_starts, inputs.state_sources, inputs.state_destinations)
        hidden = self._model(tokens, self._context(attention, inputs.positions, inputs.slot_mapping, states))
        return joined(hidden, self._device)

    def _context(
        self, attention: Metadata, positions: Tensor, slot_mapping: Tensor, states: StateRows
    ) -> ForwardContext:
        has_states = self._state_cache is not None
        return ForwardContext(
            self._kernels,
            self._kv_cache,
            attention,
            positions,
            slot_mapping,
            self._position_tables,
            self._hooks,
            self._received(len(positions)),
            state_cache=self._state_cache,
            state_rows=self._kernels[plan_states](states) if has_states else None,
        )

    def _received(self, num_tokens: int) -> Tensor | None:
        """The part of `incoming` for a step of `num_tokens`; None on the first stage."""
        return None if self._incoming is None else self._incoming[:num_tokens]

    def _ints(self, values: npt.ArrayLike) -> Tensor:
        return self._device.from_host(np.ascontiguousarray(values, np.int32))
