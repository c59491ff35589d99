"""Embeddings of prompts: the hidden state of their last token after the final norm, scaled to length 1.

Knows slots by their numbers, and nothing of sampling.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllm.wire.messages import Embeddings
from pyllm.workers.step.batch import Batch
from pyllm.workers.step.staging import HostCopy, to_device

# A vector is divided by at least this, as in torch's `normalize`.
_LEAST_LENGTH = 1e-12


@dataclass(frozen=True, slots=True)
class PooledRows:
    """The hidden states of some rows of a step, on their way to the host."""

    rows: npt.NDArray[np.signedinteger]  # [E], ascending
    hidden: HostCopy  # float32 [E, hidden_size]

    def is_done(self) -> bool:
        """Whether `columns` would not wait."""
        return self.hidden.is_done()

    def columns(self, num_rows: int) -> Embeddings:
        """The columns for the core, for a step of `num_rows`."""
        # Each row is summed alone and in float64, so that a vector does not depend on its neighbours.
        hidden = self.hidden.wait().numpy().astype(np.float64)
        lengths = np.sqrt(np.square(hidden).sum(axis=1, keepdims=True))
        vectors = (hidden / np.maximum(lengths, _LEAST_LENGTH)).astype("<f4")
        sizes = np.zeros(num_rows + 1, np.int32)
        sizes[self.rows + 1] = vectors.shape[1]
        return Embeddings(sizes.cumsum(dtype=np.int32).tobytes(), vectors.tobytes())


def pool(batch: Batch, hidden: Tensor, is_pooling: npt.NDArray[np.bool_]) -> PooledRows | None:
    """Select the embeddings from a step's hidden states [tokens, hidden_size], for slots with `is_pooling` [slots].

    A row has one at the chunk that ends its prompt; None if no row has one.
    """
    host = batch.host
    pools = is_pooling[host.slots]
    if not pools.any():
        return None
    rows = np.flatnonzero(pools & (np.diff(host.sampled_starts) > 0))
    if not len(rows):
        return None
    positions = torch.from_numpy(host.logits_rows[host.sampled_starts[rows]].astype(np.int64))
    return PooledRows(rows, HostCopy(hidden[to_device(positions, hidden.device)].float()))
