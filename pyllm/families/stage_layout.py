"""The layers of each pipeline stage: contiguous, and balanced by the bytes of their tensors. Knows no process.

The embedding belongs to the first stage, the final norm and the head to the last one. Stages may have different
numbers of layers. Tied weights are on both stages.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import prod

from pyllm.errors import ConfigError
from pyllm.families.kv_layout import KVGroup
from pyllm.families.tensors import TensorEntry

_EMBEDDING = "embedding.weight"
_BEFORE_LAYERS = (
    *("embedding.", "position_embedding.", "type_embedding.", "embedding_norm."),
    *("per_layer_embedding.", "per_layer_projection.", "per_layer_norm.", "streams_in."),
)


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One stage of a model: a range of layers, with the embedding on the first stage and the head on the last."""

    layers: range
    is_first: bool = True
    is_last: bool = True

    def groups(self, groups: Sequence[KVGroup]) -> tuple[KVGroup, ...]:
        """The groups with the layers of this stage alone; some may be empty."""
        return tuple(
            replace(group, layers=tuple(layer for layer in group.layers if layer in self.layers)) for group in groups
        )

    def has(self, name: str, tied: bool) -> bool:
        """Whether this stage needs a parameter, by its name in `parameter_shapes.py`; `tied`: the head has none."""
        first, _, rest = name.partition(".")
        if first == "layers":
            return int(rest.partition(".")[0]) in self.layers
        if name == _EMBEDDING:
            return self.is_first or (self.is_last and tied)
        if first == "relative_bias":  # of every layer
            return True
        if name.startswith(_BEFORE_LAYERS):
            return self.is_first
        return self.is_last


def split_into_stages(
    tensors: Sequence[TensorEntry],
    num_layers: int,
    num_stages: int,
    tied: bool,
    tied_layers: Container[int] = (),
) -> tuple[PipelineStage, ...]:
    """The stages of a model, split so that the largest is as small as possible, in bytes of the files.

    The model must have at least `num_stages` layers. No stage begins with one of `tied_layers`.

    Raises:
        ConfigError: there is no such split.
    """
    if num_stages == 1:
        return (PipelineStage(range(num_layers)),)
    sizes, before, after = _bytes_of(tensors, num_layers, tied)
    ends = _ends(sizes, before, after, num_stages, tied_layers)
    starts = (0, *ends[:-1])
    return tuple(
        PipelineStage(range(start, end), is_first=start == 0, is_last=end == num_layers)
        for start, end in zip(starts, ends, strict=True)
    )


def _bytes_of(tensors: Sequence[TensorEntry], num_layers: int, tied: bool) -> tuple[list[int], int, int]:
    """Bytes of each layer, of the tensors before the layers, and of the tensors after them."""
    sizes, before, after = [0] * num_layers, 0, 0
    for entry in tensors:
        # A tensor of a file may hold several parameters, stacked by rows.
        num_bytes = entry.source.num_bytes * prod(entry.shape) // max(1, prod(entry.source.shape))
        first, _, rest = entry.name.partition(".")
        if first == "layers":
            sizes[int(rest.partition(".")[0])] += num_bytes
            continue
        is_before = entry.name.startswith(_BEFORE_LAYERS)
        if is_before:
            before += num_bytes
        if not is_before or (entry.name == _EMBEDDING and tied):
            after += num_bytes
    return sizes, before, after


def _ends(
    sizes: Sequence[int], before: int, after: int, num_stages: int, tied_layers: Container[int]
) -> tuple[int, ...]:
    """The end of each stage, for the split whose largest stage is smallest, then with the smallest sum of squares.

    Dynamic programming: `best[end]` is the best split of the layers before `end` into the stages so far.
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
                if start < end and start not in tied_layers
                for size in (stage_bytes(start, end),)
            )
            for end in range(stage + 1, num_layers + 1)
            if any(start < end and start not in tied_layers for start in best)
        }
    if num_layers not in best:
        num_tied = sum(layer in tied_layers for layer in range(num_layers))
        raise ConfigError(
            f"pipeline_parallel_size {num_stages} is not possible: {num_tied} of {num_layers} layers must be on "
            "the stage of the layer before, since later ones read its keys and values, or its choice of tokens"
        )
    return best[num_layers][2]
