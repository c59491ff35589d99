"""Plans made by hand, for the tests of the model side. The real ones are made in Rust."""

import random
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from pyllm.wire.messages import Sampling, Step
from pyllm.wire.plan_layout import NO_GROUP, PLAN_SECTIONS, plan_offsets

GREEDY = Sampling(temperature=0.0)
UNNAMED = [*bytes(32), *NO_GROUP.to_bytes(4, "little"), *bytes(4)]  # what nobody can find again


def encode(sections: dict[str, npt.ArrayLike]) -> tuple[tuple[int, ...], bytes]:
    """The counts and the frame of a plan; sections that are not named are empty."""
    dtypes = {"i": "<i4", "f": "<f4", "B": "u1"}
    unknown = sections.keys() - dict(PLAN_SECTIONS).keys()
    assert not unknown, unknown
    inits = len(np.ravel(sections.get("slot_inits", [])))
    directions = np.ravel(sections.get("swaps", []))[::3]
    empty = {
        "query_starts": [0],
        "sampled_starts": [0],
        "sampling_starts": [0],
        "history_starts": [0] * (inits + 1),
        "prompt_lengths": [0] * inits,
        "swap_names": [UNNAMED] * np.count_nonzero(directions == 0),
    }
    arrays = [np.asarray(sections.get(name, empty.get(name, [])), dtypes[kind]).ravel() for name, kind in PLAN_SECTIONS]
    counts = tuple(len(array) for array in arrays)
    offsets = plan_offsets(counts)
    frame = bytearray(offsets[-1])
    for array, offset in zip(arrays, offsets[:-1], strict=True):
        frame[offset : offset + array.nbytes] = array.tobytes()
    return counts, bytes(frame)


@dataclass
class Row:
    """Tokens that one slot computes in a step, and a uniform for each token to be sampled after the last of them."""

    slot: int
    tokens: list[int]
    uniforms: tuple[float, ...] = (0.5,)


class Planner:
    """Gives each slot the blocks it needs, in shuffled order; knows neither budget nor when to preempt.

    With several groups of layers each has blocks of its own, which are neither copied nor swapped; `max_num_seqs` says
    where the block tables of a group begin.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 16,
        num_host_blocks: int = 0,
        num_groups: int = 1,
        max_num_seqs: int = 0,
    ) -> None:
        self.block_size = block_size
        self._num_groups, self._max_num_seqs = num_groups, max_num_seqs
        self.free = list(range(num_blocks))
        self.free_on_host = list(range(num_host_blocks))
        random.Random(0).shuffle(self.free)
        random.Random(1).shuffle(self.free_on_host)
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.states: dict[int, int] = {}  # the one that a slot reads next; each writes that of its own number
        self._steps = 0
        self._changes: dict[str, list[int]] = {}
        self._sampling: list[bytes] = []
        self._histories: list[tuple[list[int], list[int]]] = []
        self._prompt_lengths: list[int] = []
        self._forget_changes()

    def start(
        self,
        slot: int,
        sampling: Sampling = GREEDY,
        history: tuple[list[int], list[int]] = ([], []),
        prompt_length: int = 0,
        adapter: int = -1,
    ) -> None:
        """Initialise a slot with the next step; `history` is the prompt and the output so far, where it is stateful.

        `adapter` is the slot of the device that has its adapter.
        """
        for row in self._table_rows(slot):
            self.free += self.tables.get(row, [])
            self.tables[row] = []
        self.lengths[slot], self.states[slot] = 0, -1
        self._changes["slot_inits"].append(slot)
        self._sampling.append(msgspec.msgpack.encode(sampling))
        self._histories.append(history)
        self._prompt_lengths.append(prompt_length or len(history[0]))
        self._adapters.append(adapter)

    def assign(self, slot_of_device: int, adapter: int) -> None:
        """Put the adapter of a number into a slot of the device with the next step."""
        self._changes["adapter_loads"] += [slot_of_device, adapter]

    def fork(self, source: int, destination: int) -> None:
        """Copy a slot with the next step; the last block, which both would write to, is copied, too."""
        self._changes["slot_copies"] += [source, destination]
        self.tables[destination], self.lengths[destination] = list(self.tables[source]), self.lengths[source]
        self.states[destination] = self.states[source]
        if self.lengths[source] % self.block_size:
            self.unshare(destination)

    def unshare(self, slot: int) -> None:
        """Give a slot a copy of its last block with the next step, as if others held the old one, too."""
        shared = self.tables[slot][-1]
        self._place(slot, len(self.tables[slot]) - 1)
        self._changes["block_copies"] += [shared, self.tables[slot][-1]]

    def swap_out(self, slot: int) -> tuple[list[int], int]:
        """Take a slot's blocks to the host with the next step, and give them and the slot up.

        What comes back is for `swap_in`: the host blocks, and how many tokens they hold.
        """
        on_host = [self.free_on_host.pop() for _ in self.tables[slot]]
        for device, host in zip(self.tables[slot], on_host, strict=True):
            self._changes["swaps"] += [0, device, host]
        self.free += self.tables.pop(slot)
        return on_host, self.lengths.pop(slot)

    def swap_in(self, slot: int, on_host: list[int], length: int) -> None:
        """Bring what was swapped out back with the next step, after every swap out, to a slot that `start` began."""
        self.tables[slot], self.lengths[slot] = [-1] * len(on_host), length
        for index, host in enumerate(on_host):
            self._place(slot, index)
            self._changes["swaps"] += [1, self.tables[slot][index], host]
        self.free_on_host += on_host

    def step(self, *rows: Row) -> tuple[Step, bytes]:
        """The plan that computes these rows, as the two frames of a step."""
        changes, sampling, histories = self._changes, self._sampling, self._histories
        positions, logits_rows = [], []
        slot_mappings: list[list[int]] = [[] for _ in range(self._num_groups)]
        query_starts, sampled_starts, sources = [0], [0], []
        for row in rows:
            for position in range(self.lengths[row.slot], self.lengths[row.slot] + len(row.tokens)):
                index, offset = divmod(position, self.block_size)
                positions.append(position)
                for table_row, slot_mapping in zip(self._table_rows(row.slot), slot_mappings, strict=True):
                    if index == len(self.tables[table_row]):
                        self.tables[table_row].append(-1)
                        self._place(table_row, index)
                    slot_mapping.append(self.tables[table_row][index] * self.block_size + offset)
            self.lengths[row.slot] += len(row.tokens)
            query_starts.append(len(positions))
            sources.append(self.states.get(row.slot, -1))
            self.states[row.slot] = row.slot
            logits_rows += [len(positions) - 1] * len(row.uniforms)
            sampled_starts.append(len(logits_rows))
        counts, frame = encode(
            {
                "tokens": [token for row in rows for token in row.tokens],
                "positions": positions,
                "slot_mapping": slot_mappings,
                "query_starts": query_starts,
                "sequence_lengths": [self.lengths[row.slot] for row in rows],
                "slots": [row.slot for row in rows],
                "logits_rows": logits_rows,
                "sampled_starts": sampled_starts,
                "uniforms": [uniform for row in rows for uniform in row.uniforms],
                "sampling_starts": np.cumsum([0, *map(len, sampling)]),
                "sampling": np.frombuffer(b"".join(sampling), np.uint8),
                "history_starts": np.cumsum([0, *(len(prompt) + len(output) for prompt, output in histories)]),
                "histories": [token for prompt, output in histories for token in (*prompt, *output)],
                "prompt_lengths": self._prompt_lengths,
                "adapter_slots": self._adapters,
                "state_sources": sources,
                "state_destinations": [row.slot for row in rows],
                **changes,
            }
        )
        self._forget_changes()
        self._steps += 1
        return Step(self._steps - 1, counts), frame

    def _table_rows(self, slot: int) -> list[int]:
        """Where each group has its block table; of the first group that is the slot."""
        return [group * self._max_num_seqs + slot for group in range(self._num_groups)]

    def _place(self, table_row: int, index: int) -> None:
        self.tables[table_row][index] = self.free.pop()
        self._changes["table_slots"].append(table_row)
        self._changes["table_indices"].append(index)
        self._changes["table_blocks"].append(self.tables[table_row][index])

    def _forget_changes(self) -> None:
        tables, copies = ("table_slots", "table_indices", "table_blocks"), ("block_copies", "swaps", "slot_copies")
        self._changes = {name: [] for name in (*tables, *copies, "slot_inits", "adapter_loads")}
        self._sampling, self._histories, self._prompt_lengths = [], [], []
        self._adapters: list[int] = []
