"""Groups of layers by window: every layer in one, as large as they can be without much padding."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.families.kv_layout import MAX_GROUPS, kv_groups, kv_tokens_per_plane, planes_of_block
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


def _reach(window: int | None, max_model_len: int) -> int | None:
    return window if window is not None and window < max_model_len else None
