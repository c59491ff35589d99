"""Groups of layers by window: every layer in one, as large as they can be without much padding."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.families.kv_layout import (
    MAX_GROUPS,
    KVGroup,
    kv_groups,
    kv_tokens_per_plane,
    num_bare_blocks,
    plane_heads,
    planes_of_block,
)
from pyllm.families.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec

WINDOWS = st.lists(st.sampled_from([None, None, 16, 512, 4096]), min_size=1, max_size=64)


def spec(windows: list[int | None]) -> ModelSpec:
    attention = AttentionSpec(heads=2, kv_heads=1, head_size=8, scale=1.0)
    layers = (msgspec.structs.replace(attention, window=window) for window in windows)
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=16,
        hidden_size=16,
        max_position_embeddings=8192,
        layers=tuple(LayerSpec(attention=layer, feed_forward=FeedForwardSpec(size=8)) for layer in layers),
        norm=NormSpec(epsilon=1e-6),
        ropes=(),
        tie_word_embeddings=True,
    )


@pytest.mark.parametrize(
    ("windows", "max_model_len", "expected"),
    [
        ([None] * 4, 64, [(None, 4)]),
        ([16] * 4, 64, [(16, 4)]),
        ([16] * 4, 16, [(None, 4)]),
        ([16, None] * 13, 64, [(None, 13), (16, 13)]),
        (([512] * 5 + [None]) * 3, 32_768, [(None, 3), *[(512, 3)] * 5]),
        # 4 full layers and 22 with a window, as in Gemma 3 1B: the last group is padded.
        (([512] * 5 + [None]) * 4 + [512] * 2, 32_768, [(None, 4), *[(512, 4)] * 5, (512, 2)]),
        ([16, 512], 64, [(None, 1), (16, 1)]),
        ([None] + [512] * 61, 32_768, [(None, 1), *[(512, 5)] * 12, (512, 1)]),
    ],
)
def test_groups(windows: list[int | None], max_model_len: int, expected: list[tuple[int | None, int]]) -> None:
    groups = kv_groups(spec(windows), max_model_len)
    assert [(group.window, len(group.layers)) for group in groups] == expected


def test_layers_of_other_query_heads_are_in_other_groups() -> None:
    plain = spec([None, 16, 16, None])
    layers = [
        msgspec.structs.replace(layer, attention=msgspec.structs.replace(layer.own_attention, heads=heads))
        for layer, heads in zip(plain.layers, (2, 4, 4, 2), strict=True)
    ]
    model = msgspec.structs.replace(plain, layers=tuple(layers))
    assert [(group.layers, group.query_heads) for group in kv_groups(model, 64)] == [((0, 3), 2), ((1, 2), 4)]
    without_windows = kv_groups(model, 64, hybrid=False)
    assert [(group.layers, group.query_heads) for group in without_windows] == [((0, 3), 2), ((1, 2), 4)]


@given(WINDOWS, st.integers(2, 8192))
def test_every_layer_is_in_one_group_of_its_window(windows: list[int | None], max_model_len: int) -> None:
    groups = kv_groups(spec(windows), max_model_len)
    assert len(groups) <= MAX_GROUPS
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    for group in groups:
        assert {_reach(windows[layer], max_model_len) for layer in group.layers} == {group.window}
    whole = sum(_reach(window, max_model_len) or max_model_len for window in windows)
    assert whole <= kv_tokens_per_plane(groups, max_model_len) <= planes_of_block(groups) * len(groups) * max_model_len


@given(WINDOWS)
def test_without_hybrid_groups_all_layers_keep_everything(windows: list[int | None]) -> None:
    (group,) = kv_groups(spec(windows), 8192, hybrid=False)
    assert (group.window, len(group.layers)) == (None, len(windows))


def test_a_model_without_attention_has_a_group_without_layers() -> None:
    model = spec([None])
    model = msgspec.structs.replace(model, layers=(msgspec.structs.replace(model.layers[0], attention=None),))
    groups = kv_groups(model, 8192)
    assert groups == (KVGroup(None, (), (0, 0)),)
    assert (planes_of_block(groups), kv_tokens_per_plane(groups, 8192)) == (0, 0)


@pytest.mark.parametrize(
    ("max_model_len", "num_states", "num_blocks"),
    [(100, 6, 6 * 7), (1 << 20, 2, 2 << 16), (1 << 20, 1000, 1 << 20), (1 << 25, 2, 1 << 21)],
)
def test_blocks_without_bytes_are_as_many_as_states_need(max_model_len: int, num_states: int, num_blocks: int) -> None:
    assert num_bare_blocks(max_model_len, 16, num_states) == num_blocks


def _reach(window: int | None, max_model_len: int) -> int | None:
    return window if window is not None and window < max_model_len else None


def unequal(kinds: list[tuple[int | None, int, int | None]]) -> ModelSpec:
    """Layers with a window, a size of heads, and the layer whose keys and values they read."""
    layers = (
        LayerSpec(
            attention=AttentionSpec(heads=2, kv_heads=1, head_size=size, scale=1.0, window=window, kv_source=source),
            feed_forward=FeedForwardSpec(size=8),
        )
        for window, size, source in kinds
    )
    return msgspec.structs.replace(spec([None]), layers=tuple(layers))


def test_layers_of_unequal_heads_have_groups_of_equal_bytes() -> None:
    # As in Gemma 4 E2B: 12 layers of small heads with a window, 3 of large heads, and 20 without keys and values.
    model = unequal([*([(512, 8, None)] * 4 + [(None, 16, None)]) * 3, *[(512, 8, 13)] * 20])
    groups = kv_groups(model, 32_768)
    assert [(group.window, group.heads, len(group.layers), group.num_planes) for group in groups] == [
        (None, (1, 16), 3, 3),
        (512, (1, 8), 6, 3),
        (512, (1, 8), 6, 3),
    ]
    assert plane_heads(model, 1) == (1, 16)
    assert kv_tokens_per_plane(groups, 32_768) == 3 * (32_768 + 2 * 512)
    assert not any(layer in group.layers for group in groups for layer in range(15, 35))
    assert [len(group.layers) for group in kv_groups(model, 32_768, hybrid=False)] == [6, 6, 3]


def test_a_plane_has_room_for_a_whole_number_of_layers_of_each_kind() -> None:
    model = unequal([(None, 24, None), (16, 32, None)])
    assert plane_heads(model, 1) == (3, 32)
    assert [group.layers_of_plane for group in kv_groups(model, 64)] == [4, 3]
