"""One step's plan as arrays. Knows the layout on the wire, not the use of a plan."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from pyllm_kernels.tensors import Tensor, view_as

from pyllm.errors import ProtocolError
from pyllm.wire.plan_layout import PLAN_SECTIONS, SWAP_NAME_SIZE, plan_offsets
from pyllm.workers.devices.device import Device
from pyllm.workers.step.text_pairs import TextPairs

IntArray = npt.NDArray[np.int32]
Array = TypeVar("Array")

_SECTION_INDEX = {name: index for index, (name, _) in enumerate(PLAN_SECTIONS)}
_DTYPES = {"i": "int32", "f": "float32", "B": "uint8"}


class Sections(Generic[Array]):
    """The sections of a plan, `PLAN_SECTIONS` by name; int32 but for `uniforms` (float32) and `sampling` (bytes).

    Each is a view of the plan's memory, made at its first use, as most steps need few of them. With T tokens,
    R rows, S sampled positions and I slot initialisations:
    """

    tokens: Array  # [T], -1: the slot's last sampled token
    positions: Array  # [T]
    slot_mapping: Array  # [groups * T]
    query_starts: Array  # [R + 1]
    sequence_lengths: Array  # [R]
    slots: Array  # [R]
    logits_rows: Array  # [S]
    sampled_starts: Array  # [R + 1]
    uniforms: Array  # [S]
    table_slots: Array
    table_indices: Array
    table_blocks: Array
    block_copies: Array  # [2 * copies]
    swaps: Array
    slot_copies: Array  # [2 * copies]
    slot_inits: Array  # [I]
    sampling_starts: Array  # [I + 1]
    sampling: Array
    history_starts: Array  # [I + 1]
    histories: Array
    prompt_lengths: Array  # [I]
    state_sources: Array  # [R], or [0] without states
    state_destinations: Array  # [R], or [0]
    state_swaps: Array
    swap_names: Array  # [40 * swaps to the host]
    state_swap_names: Array
    adapter_slots: Array  # [I], or [0] without adapters
    adapter_loads: Array  # [2 * loads]

    def __init__(self, memory: Any, counts: tuple[int, ...], offsets: tuple[int, ...]) -> None:
        self._memory = memory
        self._counts = counts
        self._offsets = offsets

    def __getattr__(self, name: str) -> Any:
        index = _SECTION_INDEX.get(name)
        if index is None:
            raise AttributeError(f"a plan has no section {name!r}")
        element, offset = PLAN_SECTIONS[index][1], self._offsets[index]
        size = self._counts[index] * (1 if element == "B" else 4)
        view = view_as(self._memory[offset : offset + size], _DTYPES[element])
        setattr(self, name, view)
        return view


@dataclass(frozen=True, slots=True)
class Batch:
    """A plan in two copies: on the host, for decisions, and on the device, for computing.

    The arrays are views of a `PlanBuffer`, so a batch is valid until the next one is loaded.
    """

    host: Sections[npt.NDArray[Any]]
    device: Sections[Tensor]
    num_tokens: int
    num_rows: int
    max_query_length: int
    max_sequence_length: int


class PlanBuffer:
    """The aligned memory that plans are copied into; it grows to at least twice its size when a plan does not fit.

    Plans are for `num_groups` groups of layers. `pairs` moves the positions of second texts.

    A plan for a GPU has its own pinned memory, as the copy of the plan before may not have ended.
    """

    def __init__(
        self, device: Device, capacity: int = 1 << 16, num_groups: int = 1, pairs: TextPairs | None = None
    ) -> None:
        self._device = device
        self._num_groups = num_groups
        self._pairs = pairs
        self._room = device.host_room(capacity, None)

    def load(self, counts: tuple[int, ...], frame: bytes | memoryview) -> Batch:
        """Copy a plan in and return its sections.

        Raises:
            ProtocolError: the frame is not as long as the counts say, or the counts do not go together.
        """
        check_counts(counts, self._num_groups)
        offsets = plan_offsets(counts)
        size = offsets[-1]
        source = np.frombuffer(frame, np.uint8)
        if len(source) != size:
            raise ProtocolError(f"a plan with the counts {counts} has {size} bytes, but {len(source)} came")
        self._room = self._device.host_room(size, self._room)
        memory = self._room[:size]
        memory[:] = source
        host: Sections[npt.NDArray[Any]] = Sections(memory, counts, offsets)
        if self._pairs is not None:
            self._pairs.move(host.tokens, host.positions)
        on_device = self._device.from_host(memory)
        return Batch(
            host=host,
            device=host if on_device is memory else Sections(on_device, counts, offsets),
            num_tokens=len(host.tokens),
            num_rows=len(host.slots),
            max_query_length=int(np.diff(host.query_starts).max(initial=0)),
            max_sequence_length=int(host.sequence_lengths.max(initial=0)),
        )


def check_counts(counts: tuple[int, ...], num_groups: int = 1) -> None:
    """Refuse counts that no plan for `num_groups` groups of layers can have.

    Raises:
        ProtocolError: with the counts.
    """
    if len(counts) != len(PLAN_SECTIONS) or min(counts) < 0:
        raise ProtocolError(f"a plan has {len(PLAN_SECTIONS)} counts of 0 or more, not {counts}")
    count = dict(zip((name for name, _ in PLAN_SECTIONS), counts, strict=True))
    consistent = (
        count["tokens"] == count["positions"]
        and count["slot_mapping"] == num_groups * count["tokens"]
        and count["query_starts"] == count["sampled_starts"] == count["slots"] + 1
        and count["sequence_lengths"] == count["slots"]
        and count["logits_rows"] == count["uniforms"]
        and count["table_slots"] == count["table_indices"] == count["table_blocks"]
        and count["block_copies"] % 2 == count["slot_copies"] % 2 == 0
        and count["swaps"] % 3 == count["state_swaps"] % 3 == 0
        and count["sampling_starts"] == count["history_starts"] == count["slot_inits"] + 1
        and count["prompt_lengths"] == count["slot_inits"]
        and count["state_sources"] == count["state_destinations"]
        and count["state_sources"] in (0, count["slots"])
        and count["adapter_slots"] in (0, count["slot_inits"])
        and count["adapter_loads"] % 2 == 0
        and count["swap_names"] % SWAP_NAME_SIZE == count["state_swap_names"] % SWAP_NAME_SIZE == 0
        and count["swap_names"] // SWAP_NAME_SIZE <= count["swaps"] // 3
        and count["state_swap_names"] // SWAP_NAME_SIZE <= count["state_swaps"] // 3
    )
    if not consistent:
        raise ProtocolError(f"the counts of a plan do not go together: {count}")


def gather(pairs: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Resolve slot copies, made in the order of the pairs, into sources and destinations for one gather."""
    origins: dict[int, int] = {}
    for source, destination in zip(pairs[::2].tolist(), pairs[1::2].tolist(), strict=True):
        origins[destination] = origins.get(source, source)
    return np.array(list(origins.values()), np.int32), np.array(list(origins), np.int32)
