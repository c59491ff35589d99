"""The groups of layers that share block tables: layers with the same window. Knows no blocks, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyllm.families.spec import ModelSpec

MAX_GROUPS = 16  # the scheduler's limit
# The share of KV cache that may be lost to padding for fewer groups: a step costs some time for each group.
_MAX_PADDING = 0.1


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Some layers of a model with the same window; None for full attention. The last group of a window may be smaller.

    Each group has its own block for the same tokens; blocks have the same size in every group.
    """

    window: int | None
    layers: tuple[int, ...]  # indices of layers, in order


def kv_groups(spec: ModelSpec, max_model_len: int, hybrid: bool = True) -> tuple[KVGroup, ...]:
    """The groups of a model: full attention first, then by window.

    Groups are as large as possible without losing more than a tenth of a sequence of `max_model_len` tokens to padding.
    Without `hybrid`, or if no window is shorter than `max_model_len`, all layers are one group with full attention.
    """
    layers: dict[int | None, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        if layer.attention is None:
            continue
        window = layer.attention.window
        reach = window if hybrid and window is not None and window < max_model_len else None
        layers.setdefault(reach, []).append(index)
    reaches = sorted(layers, key=lambda window: -1 if window is None else window)
    size = _group_size({window: len(layers[window]) for window in reaches}, max_model_len)
    return tuple(
        KVGroup(window, tuple(layers[window][start : start + size]))
        for window in reaches
        for start in range(0, len(layers[window]), size)
    )


def layers_of_group(groups: Sequence[KVGroup]) -> int:
    """The number of layers that a block has room for: the size of the largest group."""
    return max(len(group.layers) for group in groups)


def kv_tokens_per_layer(groups: Sequence[KVGroup], num_tokens: int) -> int:
    """The sum over layers of the tokens kept from a sequence of `num_tokens` tokens, padding included."""
    return layers_of_group(groups) * sum(min(group.window or num_tokens, num_tokens) for group in groups)


def _group_size(counts: dict[int | None, int], max_model_len: int) -> int:
    def kept(size: int) -> int:
        return sum(-(-count // size) * size * (window or max_model_len) for window, count in counts.items())

    def number(size: int) -> int:
        return sum(-(-count // size) for count in counts.values())

    sizes = [size for size in range(1, max(counts.values()) + 1) if number(size) <= MAX_GROUPS]
    limit = (1 + _MAX_PADDING) * min(map(kept, sizes))
    return max(size for size in sizes if kept(size) <= limit)
