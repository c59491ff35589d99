"""Embeddings of prompts: the last or first token's hidden state after the final norm, or the mean, and what the model
makes of it.

Knows slots by their numbers, but not sampling.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import Tensor

from pyllm.wire.messages import POOLING, Embeddings
from pyllm.workers.devices.device import Device, HostCopy
from pyllm.workers.step.batch import Batch

POOLING_CODES = {"": 0} | {kind: code for code, kind in enumerate(POOLING, 1)}
"""What `SamplingSlots.pooling` has for the kinds of `POOLING`."""

_Vectors = npt.NDArray[np.float64]
EmbeddingOf = Callable[[_Vectors], _Vectors]
"""Makes the embedding of one text, or its scores, from its pooled state [hidden_size]."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of a prompt with mean or first-token pooling."""

    row: int
    slot: int
    start: int  # the index of its first state in `PooledRows.hidden`
    num_states: int
    position: int  # of its first token
    is_mean: bool
    ends: bool  # whether it ends the prompt


@dataclass(frozen=True, slots=True)
class PooledRows:
    """The hidden states of a step for its embeddings, on their way to the host."""

    rows: npt.NDArray[np.signedinteger]  # rows with last-token pooling, ascending
    chunks: list[_Chunk]
    pooler: "Pooler"
    embedding_of: EmbeddingOf
    hidden: HostCopy  # [states, hidden_size]: one for each of `rows`, then those of the chunks

    def is_done(self) -> bool:
        """Whether `columns` would not wait."""
        return self.hidden.is_done()

    def columns(self, num_rows: int) -> Embeddings | None:
        """The columns for the core, for a step of `num_rows`; None if no prompt ends in it."""
        # In float64, each row alone and token by token, so that a vector depends on neither neighbours nor chunks.
        hidden = self.hidden.wait().astype(np.float64)
        vectors = dict(zip(self.rows.tolist(), hidden, strict=False))
        for chunk in self.chunks:
            vector = self.pooler.add(chunk, hidden[chunk.start : chunk.start + chunk.num_states])
            if chunk.ends:
                vectors[chunk.row] = vector
        if not vectors:
            return None
        rows = sorted(vectors)
        values = np.stack([self.embedding_of(vectors[row]) for row in rows])
        sizes = np.zeros(num_rows + 1, np.int32)
        sizes[np.array(rows) + 1] = values.shape[1]
        return Embeddings(sizes.cumsum(dtype=np.int32).tobytes(), values.astype("<f4").tobytes())


class Pooler:
    """Selects the embeddings of each step; ask for the `columns` of its steps in their order."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._vectors: dict[int, _Vectors] = {}  # of a prompt's chunks so far, by slot

    def select(
        self, batch: Batch, hidden: Tensor, pooling: npt.NDArray[np.int8], embedding_of: EmbeddingOf
    ) -> PooledRows | None:
        """The states for embeddings among a step's hidden states [tokens, hidden_size]; None if there are none.

        `pooling` [slots] has the code of each slot. A row gets its embedding at the chunk that ends its prompt.
        """
        host = batch.host
        kinds = pooling[host.slots]
        if not kinds.any():
            return None
        ends = np.diff(host.sampled_starts) > 0
        rows = np.flatnonzero((kinds == POOLING_CODES["last"]) & ends)
        wanted = [host.logits_rows[host.sampled_starts[rows]].astype(np.int64)]
        chunks, num_states = [], len(rows)
        for row in np.flatnonzero((kinds == POOLING_CODES["mean"]) | (kinds == POOLING_CODES["cls"])).tolist():
            is_mean = bool(kinds[row] == POOLING_CODES["mean"])
            first, end = map(int, host.query_starts[row : row + 2])
            stop = end if is_mean else first + 1
            # Those of the plan may be moved by the token's type.
            slot, position = int(host.slots[row]), int(host.sequence_lengths[row]) - (end - first)
            chunks.append(_Chunk(row, slot, num_states, stop - first, position, is_mean, bool(ends[row])))
            wanted.append(np.arange(first, stop, dtype=np.int64))
            num_states += stop - first
        if not num_states:
            return None
        states = self._device.take(hidden, np.concatenate(wanted))
        return PooledRows(rows, chunks, self, embedding_of, self._device.host_copy(states))

    def add(self, chunk: _Chunk, states: _Vectors) -> _Vectors:
        """The sum of a prompt's states up to this chunk's end, at last their mean; or its first state.

        `states` [states, hidden_size] are all of the chunk for the mean, and its first one for first-token pooling.
        """
        if chunk.position:  # The slot's former request may have ended within its prompt.
            states = np.concatenate((self._vectors[chunk.slot][None], states))
        # `sum` would add in another order.
        vector: _Vectors = np.add.accumulate(states, axis=0)[-1] if chunk.is_mean else states[0]
        if chunk.ends:
            self._vectors.pop(chunk.slot, None)
            return vector / (chunk.position + chunk.num_states) if chunk.is_mean else vector
        self._vectors[chunk.slot] = vector.copy()  # without the step's other states
        return vector
