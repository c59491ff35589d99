"""The forward pass on a CPU as one call: captures the model's ops for the largest step and replays them for each.

Knows neither the ops nor slots. GPUs use CUDA graphs instead.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from pyllm_kernels import AttentionMetadata, Graph, StateRows
from pyllm_kernels.tensors import Tensor

from pyllm.workers.causal_model import CausalModel, joined
from pyllm.workers.devices.device import Device
from pyllm.workers.layers.forward_context import ForwardContext
from pyllm.workers.step.attention_batch import AttentionBatch
from pyllm.workers.step.batch import Batch
from pyllm.workers.step.step_rows import StepRows

Metadata = tuple[AttentionMetadata, ...]  # of each group of layers


class StepGraph:
    """A model captured for up to `max_tokens` tokens of `max_rows` rows, and `max_logits` rows of logits.

    `make_context` takes the result of `prepare`.

    Capturing computes nothing, but it touches the graph's memory, so that no step waits for page faults.
    """

    def __init__(
        self,
        model: CausalModel,
        prepare: Callable[[AttentionBatch, Metadata | None], Metadata],
        make_context: Callable[[Metadata, Tensor, Tensor, StateRows], ForwardContext],
        *,
        max_tokens: int,
        max_rows: int,
        max_logits: int,
        num_groups: int,
        device: Device,
    ) -> None:
        self._device = device
        self._tokens, self._positions = np.zeros((2, max_tokens), np.int32)
        self._slot_mapping = np.zeros((num_groups, max_tokens), np.int32)
        self._slots, self._sequence_lengths = np.zeros((2, max_rows), np.int32)
        self._query_starts = np.zeros(max_rows + 1, np.int32)
        self._state_sources, self._state_destinations = np.full((2, max_rows), -1, np.int32)
        states = StateRows(self._query_starts, self._state_sources, self._state_destinations)
        self._prepare = prepare
        self._rows = AttentionBatch(
            host_query_starts=self._query_starts,
            host_sequence_lengths=self._sequence_lengths,
            query_starts=self._query_starts,
            sequence_lengths=self._sequence_lengths,
            slots=self._slots,
            max_query_length=max_tokens,
            max_sequence_length=max_tokens,
            num_tokens=max_tokens,
        )
        self._metadata = metadata = prepare(self._rows, None)
        self._layers, self._head = Graph(), Graph()
        with self._layers.capture():
            self._parts = model(self._tokens, make_context(metadata, self._positions, self._slot_mapping, states))
        hidden = self._parts[0]
        self._wanted = np.zeros((max_logits, hidden.shape[1]), hidden.dtype)
        with self._head.capture():
            self._logits = model.logits(self._wanted)

    def has_room(self, batch: Batch) -> bool:
        """Whether a batch fits into the captured step; it may not if the token budget was raised after the capture."""
        return batch.num_tokens <= len(self._tokens) and batch.num_rows <= len(self._slots)

    def hidden(self, tokens: Tensor, batch: Batch, split: StepRows | None = None) -> Tensor:
        """Hidden states, as `joined` returns them; the next call overwrites them. `split` replaces the batch's rows."""
        host = batch.host
        rows_of = host if split is None else split
        starts, lengths, slots = rows_of.query_starts, rows_of.sequence_lengths, rows_of.slots
        for buffer, values in (
            (self._tokens, tokens),
            (self._positions, host.positions),
            *zip(self._slot_mapping, host.slot_mapping.reshape(len(self._slot_mapping), -1), strict=True),
            (self._slots, slots),
            (self._query_starts, starts),
            (self._sequence_lengths, lengths),
            (self._state_sources, host.state_sources),
            (self._state_destinations, host.state_destinations),
        ):
            buffer[: len(values)] = values
        rows = replace(self._rows, host_query_starts=starts, host_sequence_lengths=lengths)
        self._prepare(rows, self._metadata)
        self._layers.replay(batch.num_tokens, len(slots))
        return joined([part[: batch.num_tokens] for part in self._parts], self._device)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits of some rows of hidden states, [rows, vocab_size], which the next call overwrites.

        Only for a model with a head.
        """
        assert self._logits is not None, "a stage before the last one has no head"
        wanted = self._wanted[: len(rows)]
        np.take(hidden, rows, axis=0, out=wanted, mode="clip")
        self._head.replay(len(wanted), len(wanted))
        return self._logits[: len(wanted)]
