"""The shapes and bytes of states, by rank, and their share of a cache."""

import pytest

from pyllm.families.spec import (
    AttentionSpec,
    GatedDeltaSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
    RecurrenceSpec,
    SelectiveScanSpec,
    ShortConvolutionSpec,
    StateSpaceSpec,
)
from pyllm.families.state_layout import checkpoint_tokens, fitting_states, state_bytes, state_shapes

# The sizes of Qwen3-Next, LFM2 and Nemotron 3 Nano.
DELTA = GatedDeltaSpec(key_heads=16, value_heads=32, key_size=128, value_size=128, width=4, epsilon=1e-6)
CONVOLUTION = ShortConvolutionSpec(size=2048, width=3)
SPACE = StateSpaceSpec(heads=64, head_size=64, groups=8, state_size=128, width=4, epsilon=1e-5)
SCAN = SelectiveScanSpec(size=8192, state_size=16, step_rank=256, width=4)  # of Jamba
ONE_GROUP = StateSpaceSpec(heads=8, head_size=4, groups=1, state_size=5, width=4, epsilon=1e-5)


@pytest.mark.parametrize(
    ("recurrence", "ranks", "shapes"),
    [
        (DELTA, 1, ((3, 8192), (32, 128, 128))),
        (DELTA, 4, ((3, 2048), (8, 128, 128))),
        (CONVOLUTION, 2, ((2, 1024),)),
        (SPACE, 1, ((3, 6144), (64, 64, 128))),
        (SPACE, 8, ((3, 768), (8, 64, 128))),
        (SCAN, 2, ((3, 4096), (4096, 16))),
        (ONE_GROUP, 2, ((3, 26), (4, 4, 5))),
    ],
)
def test_each_rank_has_its_heads(recurrence: RecurrenceSpec, ranks: int, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert state_shapes(recurrence, ranks) == shapes


def model(*recurrences: RecurrenceSpec | None) -> ModelSpec:
    """A model with attention where there is no recurrence."""
    attention = AttentionSpec(heads=16, kv_heads=2, head_size=256, scale=1.0)
    return ModelSpec(
        architecture="Tiny",
        vocab_size=16,
        hidden_size=16,
        max_position_embeddings=1024,
        layers=tuple(
            LayerSpec(attention=attention if recurrence is None else None, recurrence=recurrence)
            for recurrence in recurrences
        ),
        norm=NormSpec(epsilon=1e-6),
        ropes=(),
        tie_word_embeddings=True,
    )


def test_a_state_of_qwen3_next_has_79_megabytes() -> None:
    spec = model(*[DELTA, DELTA, DELTA, None] * 12)
    assert state_bytes(spec, 1, range(48)) == 36 * 4 * (3 * 8192 + 32 * 128 * 128) == 79_036_416
    assert 12 * state_bytes(spec, 1, range(4)) == 79_036_416
    # Their keys and values take as much in 3,216 tokens of bfloat16.
    assert checkpoint_tokens(spec, 2) == 79_036_416 // (12 * 2 * 2 * 512) == 3216
    assert checkpoint_tokens(model(CONVOLUTION, None), 2) == 256
    assert checkpoint_tokens(model(SCAN), 2) == 2048


def test_states_take_half_of_a_cache_at_most_unless_they_are_alone() -> None:
    assert [fitting_states(room, 100, 8) for room in (1000, 10**9, 100)] == [5, 64, 0]
    assert [fitting_states(room, 100, 8, has_blocks=False) for room in (1000, 10**9, 100)] == [10, 64, 1]


def test_a_model_without_states_has_no_bytes() -> None:
    assert state_bytes(model(None, None), 1, range(2)) == 0
    assert [model(None).has_states, model(None, SPACE).has_states] == [False, True]
