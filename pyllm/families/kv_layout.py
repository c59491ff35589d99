"""The groups of layers that share block tables: layers with the same window and heads. Knows no blocks, no torch.

A block has a number of planes. A plane has room for the keys and values of one layer of the widest heads, or of several
layers of narrower ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyllm.families.spec import AttentionSpec, ModelSpec

MAX_GROUPS = 16  # the scheduler's limit
# Tokens that blocks without bytes hold, beyond which they would take too much of the scheduler's memory.
_MOST_BARE_TOKENS = 1 << 24
# The share of KV cache that may be lost to padding for fewer groups: a step costs some time for each group.
_MAX_PADDING = 0.1


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Some layers of a model with the same window; None for full attention. The last group of a kind may be smaller.

    Each group has its own block for the same tokens; blocks have the same size in every group. `heads` are the KV heads
    of a rank and their size, `query_heads` its query heads.
    """

    window: int | None
    layers: tuple[int, ...]  # indices of layers, in order
    heads: tuple[int, int]
    layers_of_plane: int = 1
    query_heads: int = 0

    @property
    def num_planes(self) -> int:
        """The planes that the layers take."""
        return -(-len(self.layers) // self.layers_of_plane)


def kv_groups(spec: ModelSpec, max_model_len: int, hybrid: bool = True, ranks: int = 1) -> tuple[KVGroup, ...]:
    """The groups of a model on each of `ranks`: full attention first, then by window, then by heads.

    Groups are as large as possible without losing more than a tenth of a sequence of `max_model_len` tokens to padding.
    Without `hybrid`, if no window is shorter than `max_model_len`, or if tokens attend to later ones, every group has
    full attention, and layers of equal heads are one group. Layers that read the keys and values of others are in none.
    Without a layer with attention there is a group without layers: its blocks have no bytes, and name the checkpoints
    of states alone.
    """
    layers: dict[_Kind, list[int]] = {}
    hybrid = hybrid and not spec.is_bidirectional
    for index, layer in enumerate(spec.layers):
        if layer.attention is None or layer.attention.kv_source is not None:
            continue
        window = layer.attention.window
        reach = window if hybrid and window is not None and window < max_model_len else None
        kind = reach, heads_of_rank(layer.attention, ranks), layer.attention.heads // ranks
        layers.setdefault(kind, []).append(index)
    if not layers:
        return (KVGroup(None, (), plane_heads(spec, ranks)),)
    kinds = sorted(layers, key=lambda kind: (-1 if kind[0] is None else kind[0], *kind[1:]))
    width = math.prod(plane_heads(spec, ranks))
    of_plane = {kind: width // math.prod(kind[1]) for kind in kinds}
    size = _planes_of_group({kind: -(-len(layers[kind]) // of_plane[kind]) for kind in kinds}, max_model_len)
    return tuple(
        KVGroup(kind[0], tuple(layers[kind][start : start + size * of_plane[kind]]), kind[1], of_plane[kind], kind[2])
        for kind in kinds
        for start in range(0, len(layers[kind]), size * of_plane[kind])
    )


def heads_of_rank(attention: AttentionSpec, ranks: int) -> tuple[int, int]:
    """The number of KV heads of a layer on each of `ranks`, and their size."""
    return attention.kv_heads_of_rank(ranks), attention.head_size


def plane_heads(spec: ModelSpec, ranks: int) -> tuple[int, int]:
    """The KV heads that a token has room for in a plane, and their size: every layer's features divide theirs.

    Both are 0 without a layer with attention.
    """
    heads = {heads_of_rank(attention, ranks) for attention in spec.attentions}
    _, size = max(heads, key=math.prod, default=(0, 0))
    return (math.lcm(size, *map(math.prod, heads)) // size, size) if size else (0, 0)


def num_bare_blocks(max_model_len: int, block_size: int, num_states: int) -> int:
    """The number of blocks without bytes: enough for the whole context of each state, as far as that is reasonable."""
    of_context = -(-max_model_len // block_size)
    return max(of_context, min(num_states * of_context, _MOST_BARE_TOKENS // block_size))


def planes_of_block(groups: Sequence[KVGroup]) -> int:
    """The number of planes of a block: those of the largest group."""
    return max(group.num_planes for group in groups)


def kv_tokens_per_plane(groups: Sequence[KVGroup], num_tokens: int) -> int:
    """The sum over planes of the tokens kept from a sequence of `num_tokens` tokens, padding included."""
    return planes_of_block(groups) * sum(min(group.window or num_tokens, num_tokens) for group in groups)


_Kind = tuple[int | None, tuple[int, int], int]  # window, KV heads and query heads of a group's layers


def _planes_of_group(counts: dict[_Kind, int], max_model_len: int) -> int:
    def kept(size: int) -> int:
        return sum(-(-count // size) * size * (window or max_model_len) for (window, *_), count in counts.items())

    def number(size: int) -> int:
        return sum(-(-count // size) for count in counts.values())

    sizes = [size for size in range(1, max(counts.values()) + 1) if number(size) <= MAX_GROUPS]
    limit = (1 + _MAX_PADDING) * min(map(kept, sizes))
    return max(size for size in sizes if kept(size) <= limit)
