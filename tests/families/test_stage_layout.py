"""Stages are contiguous, none is empty, and the largest one is as small as any cut makes it."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import ConfigError
from pyllm.families.kv_layout import KVGroup
from pyllm.families.stage_layout import PipelineStage, split_into_stages
from pyllm.families.tensors import FileTensor, TensorEntry


def entry(name: str, num_bytes: int) -> TensorEntry:
    return TensorEntry(name, (num_bytes,), FileTensor(name, "I8", (num_bytes,), 0, 0, num_bytes))


def tensors(layers: list[int], embedding: int, head: int) -> tuple[TensorEntry, ...]:
    """A head of 0 bytes is tied."""
    own = [entry(f"layers.{index}.feed_forward.up.weight", size) for index, size in enumerate(layers)]
    ends = [entry("embedding.weight", embedding), entry("norm.weight", 1)]
    return (*ends, *own, *([entry("head.weight", head)] if head else []))


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 100), st.integers(0, 100), st.integers(1, 7)
)
def test_no_cut_has_a_smaller_largest_stage(layers: list[int], embedding: int, head: int, num_stages: int) -> None:
    num_stages, tied = min(num_stages, len(layers)), head == 0
    entries = tensors(layers, embedding, head)
    stages = split_into_stages(entries, len(layers), num_stages, tied)
    assert [layer for stage in stages for layer in stage.layers] == list(range(len(layers)))
    assert all(stage.layers for stage in stages)
    assert [stage.is_first for stage in stages] == [index == 0 for index in range(num_stages)]
    assert [stage.is_last for stage in stages] == [index == num_stages - 1 for index in range(num_stages)]

    def largest(cut: tuple[int, ...]) -> int:
        ranges = [range(start, end) for start, end in pairwise((0, *cut, len(layers)))]
        sizes = [sum(layers[layer] for layer in part) for part in ranges]
        sizes[0] += embedding
        sizes[-1] += 1 + (head or (embedding if num_stages > 1 else 0))
        return max(sizes)

    chosen = tuple(stage.layers.stop for stage in stages[:-1])
    assert largest(chosen) == min(largest(cut) for cut in combinations(range(1, len(layers)), num_stages - 1))


def test_each_parameter_is_where_it_is_needed() -> None:
    stages = split_into_stages(tensors([10, 10, 10, 10, 10], 1, 1), 5, 2, False)
    assert [list(stage.layers) for stage in stages] in ([[0, 1, 2], [3, 4]], [[0, 1], [2, 3, 4]])
    names = [
        "embedding.weight",
        "position_embedding.weight",
        "relative_bias.weight",
        "norm.weight",
        "head.weight",
        "layers.0.attention.query.weight",
        "layers.4.x",
    ]
    assert [[stage.has(name, tied=False) for name in names] for stage in stages] == [
        [True, True, True, False, False, True, False],
        [False, False, True, True, True, False, True],
    ]
    assert [stage.has("embedding.weight", tied=True) for stage in stages] == [True, True]


def test_a_stage_keeps_all_groups_with_its_own_layers() -> None:
    groups = (KVGroup(None, (0, 2), (2, 8)), KVGroup(16, (1, 3), (2, 8)))
    assert PipelineStage(range(2, 3)).groups(groups) == (KVGroup(None, (2,), (2, 8)), KVGroup(16, (), (2, 8)))


def test_large_ends_have_fewer_layers() -> None:
    stages = split_into_stages(tensors([10] * 10, 40, 39), 10, 3, False)
    assert [len(stage.layers) for stage in stages] == [2, 6, 2]
    assert [len(stage.layers) for stage in split_into_stages(tensors([10] * 7, 1, 1), 7, 3, False)] in (
        [2, 3, 2],
        [2, 2, 3],
        [3, 2, 2],
    )


def test_layers_that_read_keys_and_values_of_others_are_on_their_stage() -> None:
    entries = tensors([10] * 6, 1, 1)
    stages = split_into_stages(entries, 6, 2, False, frozenset({2, 3, 4, 5}))
    assert [stage.layers for stage in stages] == [range(1), range(1, 6)]
    with pytest.raises(ConfigError, match="size 3 is not possible: 4 of 6 layers must be on the stage"):
        split_into_stages(entries, 6, 3, False, frozenset({2, 3, 4, 5}))
