"""The layers of each pipeline stage: contiguous, and balanced by the bytes of their tensors. Knows no process.

The embedding counts with the first stage, the final norm and the head with the last one. Stages may have different
numbers of layers. Tied weights are on both ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pyllm.families.kv_layout import KVGroup
from pyllm.families.tensors import TensorEntry

_EMBEDDING = "embedding.weight"


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """What one stage computes of a model: some layers, the embedding before all of them, the head after all."""

    layers: range
    is_first: bool = True
    is_last: bool = True

    def groups(self, groups: Sequence[KVGroup]) -> tuple[KVGroup, ...]:
        """The same groups with the layers of this stage alone: some may have none."""
        return tuple(
            KVGroup(group.window, tuple(layer for layer in group.layers if layer in self.layers)) for group in groups
        )

    def has(self, name: str, tied: bool) -> bool:
        """Whether this stage needs a parameter, by its name in `families/tensors.py`; `tied`: there is no head's."""
        first, _, rest = name.partition(".")
        if first == "layers":
            return int(rest.partition(".")[0]) in self.layers
        if name == _EMBEDDING:
            return self.is_first or (self.is_last and tied)
        return self.is_last


def split_into_stages(
    tensors: Sequence[TensorEntry], num_layers: int, num_stages: int, tied: bool
) -> tuple[PipelineStage, ...]:
    """The stages of a model whose largest one is as small as it can be, in bytes of the files.

    There must be a layer for each stage.
    """
    if num_stages == 1:
        return (PipelineStage(range(num_layers)),)
    sizes, before, after = _bytes_of(tensors, num_layers, tied)
    ends = _ends(sizes, before, after, num_stages)
    starts = (0, *ends[:-1])
    return tuple(
        PipelineStage(range(start, end), is_first=start == 0, is_last=end == num_layers)
        for start, end in zip(starts, ends, strict=True)
    )


def _bytes_of(tensors: Sequence[TensorEntry], num_layers: int, tied: bool) -> tuple[list[int], int, int]:
    """Bytes of each layer, of what comes before them and of what comes after them."""
    sizes, before, after = [0] * num_layers, 0, 0
    for entry in tensors:
        # A tensor of a file may hold several parameters, one below the other.
        num_bytes = entry.source.num_bytes * prod(entry.shape) // max(1, prod(entry.source.shape))
        first, _, rest = entry.name.partition(".")
        if first == "layers":
            sizes[int(rest.partition(".")[0])] += num_bytes
            continue
        if entry.name == _EMBEDDING:
            before += num_bytes
        if entry.name != _EMBEDDING or tied:
            after += num_bytes
    return sizes, before, after


def _ends(sizes: Sequence[int], before: int, after: int, num_stages: int) -> tuple[int, ...]:
    """Where each stage ends: of all cuts the one with the smallest largest stage, then with the most equal ones.

    By dynamic programming: `best[end]` is the best cut of the layers before `end` into the stages so far.
    """
    num_layers = len(sizes)
    totals = [before]  # bytes of the embedding and the layers before each one
    for size in sizes:
        totals.append(totals[-1] + size)

    def stage_bytes(start: int, end: int) -> int:
        whole = totals[end] - (totals[start] if start else 0)
        return whole + (after if end == num_layers else 0)

    best: dict[int, tuple[int, int, tuple[int, ...]]] = {
        end: (stage_bytes(0, end), stage_bytes(0, end) ** 2, (end,)) for end in range(1, num_layers + 1)
    }
    for stage in range(1, num_stages):
        best = {
            end: min(
                (max(largest, size), squares + size**2, (*ends, end))
                for start, (largest, squares, ends) in best.items()
                if start < end
                for size in (stage_bytes(start, end),)
            )
            for end in range(stage + 1, num_layers + 1)
        }
    return best[num_layers][2]
