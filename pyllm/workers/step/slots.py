"""The block table and the last token of each running sequence, by slot.

The scheduler assigns slots, and all changes come with plans. Knows no requests.
"""

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import Tensor, copied

from pyllm.workers.devices.device import Device
from pyllm.workers.step.batch import Batch, gather


class Slots:
    """`max_num_seqs` slots of at most `max_blocks` blocks in each group of layers.

    `block_tables` is int32 [groups * max_num_seqs, max_blocks], one group after another. `prompt_lengths` is int32
    [max_num_seqs], on the host. `nobody` is an extra index where graphs write tokens that belong to no slot.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, device: Device, num_groups: int = 1) -> None:
        self._device = device
        self._first_rows = np.arange(num_groups, dtype=np.int32) * max_num_seqs
        self.block_tables = device.zeros((num_groups * max_num_seqs, max_blocks), "int32")
        self.prompt_lengths = np.zeros(max_num_seqs, np.int32)
        self.nobody = max_num_seqs
        self._kept = device.zeros((max_num_seqs + 1,), "int32")
        self.last_tokens = self._kept[:-1]

    def apply(self, batch: Batch) -> None:
        """Apply the plan before its forward pass: slot copies, then initialisations, then block-table changes."""
        if len(batch.host.slot_copies):
            sources, destinations = gather(batch.host.slot_copies)
            rows = np.add.outer(self._first_rows, np.stack((sources, destinations)))  # [groups, 2, copies]
            self._device.assign(self.block_tables, rows[:, 1].ravel(), self.block_tables, rows[:, 0].ravel())
            self._device.assign(self.last_tokens, destinations, self.last_tokens, sources)
            self.prompt_lengths[destinations] = self.prompt_lengths[sources]
        if len(batch.host.slot_inits):
            self.prompt_lengths[batch.host.slot_inits] = batch.host.prompt_lengths
        if len(batch.host.table_slots):
            changes = batch.device
            self.block_tables[changes.table_slots, changes.table_indices] = changes.table_blocks

    def tables_of_groups(self) -> tuple[Tensor, ...]:
        """The block tables of each group, [max_num_seqs, max_blocks], as views."""
        num_slots = len(self.prompt_lengths)
        return tuple(self.block_tables[first : first + num_slots] for first in self._first_rows.tolist())

    def known_tokens(self, batch: Batch) -> Tensor:
        """The plan's tokens, int32 [tokens], with each -1 replaced by its slot's last sampled token."""
        unknown = np.flatnonzero(batch.host.tokens < 0)
        tokens = batch.device.tokens
        if len(unknown):
            rows = np.searchsorted(batch.host.query_starts, unknown, side="right") - 1
            tokens = copied(tokens)  # On a CPU this is the plan's own memory, and later readers need the -1.
            self._device.assign(tokens, unknown, self.last_tokens, batch.host.slots[rows])
        return tokens

    def remember(self, batch: Batch, sampled: Tensor) -> None:
        """Store each sampling row's last token of `sampled`, int32 [sampled positions]."""
        ends = batch.host.sampled_starts[1:]
        rows = np.flatnonzero(np.diff(batch.host.sampled_starts))
        self._device.assign(self.last_tokens, batch.host.slots[rows], sampled, ends[rows] - 1)

    def keepers(self, batch: Batch) -> npt.NDArray[np.int32]:
        """The slot that stores the token of each sampled position: the row's slot for its last one, else `nobody`."""
        starts = batch.host.sampled_starts
        if len(batch.host.uniforms) == len(batch.host.slots) and bool((starts[1:] > starts[:-1]).all()):
            return batch.host.slots  # as in every decode step
        keepers = np.full(len(batch.host.uniforms), self.nobody, np.int32)
        rows = np.flatnonzero(np.diff(starts))
        keepers[starts[1:][rows] - 1] = batch.host.slots[rows]
        return keepers

    def keep(self, keepers: Tensor, sampled: Tensor) -> None:
        """Store tokens like `remember`, on the device alone, for graphs; both tensors are int32 [positions]."""
        self._kept[keepers] = sampled
