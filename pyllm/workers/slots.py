"""What a worker keeps of each running sequence: block table, last token, sampling parameters. All by slot.

The scheduler gives slots out; nothing here knows requests. Every change comes with a plan.
"""

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllm.errors import ProtocolError
from pyllm.messages import Sampling
from pyllm.workers.batch import Batch
from pyllm.workers.sampler import SamplingRows
from pyllm.workers.staging import to_device


class Slots:
    """`max_num_seqs` slots of at most `max_blocks` blocks; the sampling parameters stay on the host."""

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.block_tables = torch.zeros((max_num_seqs, max_blocks), dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._decoder = msgspec.msgpack.Decoder(Sampling)

    def apply(self, batch: Batch) -> None:
        """Do what the plan says before its forward pass: slot copies, initialisations, block-table changes.

        Raises:
            ProtocolError: sampling parameters that do not decode.
        """
        if len(batch.host.slot_copies):
            self._copy(batch.host.slot_copies.tolist())
        if len(batch.host.slot_inits):
            self._initialise(batch)
        if len(batch.host.table_slots):
            changes = batch.device
            self.block_tables[changes.table_slots, changes.table_indices] = changes.table_blocks

    def known_tokens(self, batch: Batch) -> Tensor:
        """The plan's tokens, int32 [tokens], with each -1 replaced by its slot's last sampled token."""
        unknown = np.flatnonzero(batch.host.tokens < 0)
        tokens = batch.device.tokens
        if len(unknown):
            rows = np.searchsorted(batch.host.query_starts, unknown, side="right") - 1
            _assign(tokens, unknown, self.last_tokens, batch.host.slots[rows])
        return tokens

    def remember(self, batch: Batch, sampled: Tensor) -> None:
        """Keep each sampling row's last token of `sampled`, int32 [sampled positions]."""
        ends = batch.host.sampled_starts[1:]
        rows = np.flatnonzero(np.diff(batch.host.sampled_starts))
        _assign(self.last_tokens, batch.host.slots[rows], sampled, ends[rows] - 1)

    def sampling_rows(self, batch: Batch) -> SamplingRows:
        """The parameters of each sampled position."""
        slots = np.repeat(batch.host.slots, np.diff(batch.host.sampled_starts))
        tables = (self._temperature, self._top_k, self._top_p, self._min_p)
        return SamplingRows(*(torch.from_numpy(table[slots]) for table in tables))

    def _initialise(self, batch: Batch) -> None:
        content, starts = batch.host.sampling.tobytes(), batch.host.sampling_starts.tolist()
        for slot, start, end in zip(batch.host.slot_inits.tolist(), starts[:-1], starts[1:], strict=True):
            try:
                sampling = self._decoder.decode(content[start:end])
            except msgspec.DecodeError as error:
                raise ProtocolError(f"the sampling parameters of slot {slot} do not decode: {error}") from error
            self._temperature[slot] = sampling.temperature
            self._top_k[slot] = max(sampling.top_k, 0)
            self._top_p[slot] = sampling.top_p
            self._min_p[slot] = sampling.min_p

    def _copy(self, pairs: list[int]) -> None:
        """Copy slots in the order of the pairs, as one gather: each destination takes what its source began with."""
        origins = list(range(len(self.last_tokens)))
        for source, destination in zip(pairs[::2], pairs[1::2], strict=True):
            origins[destination] = origins[source]
        destinations = np.array(sorted(set(pairs[1::2])))
        sources = np.array(origins)[destinations]
        for table in (self._temperature, self._top_k, self._top_p, self._min_p):
            table[destinations] = table[sources]
        for copied in (self.block_tables, self.last_tokens):
            _assign(copied, destinations, copied, sources)


def _assign(
    to: Tensor, places: npt.NDArray[np.signedinteger], source: Tensor, origins: npt.NDArray[np.signedinteger]
) -> None:
    """`to[places] = source[origins]`, of tensors on one device and indices on the host."""
    if to.is_cpu:
        to.numpy()[places] = source.numpy()[origins]  # A third of the time of torch's.
        return
    both = to_device(torch.from_numpy(np.stack((places, origins)).astype(np.int64)), to.device)
    to[both[0]] = source[both[1]]
