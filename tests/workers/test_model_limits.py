"""A model that no kernel computes is refused by name, before any process starts."""

from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.families.spec import (
    AttentionSpec,
    GatedDeltaSpec,
    IndexSpec,
    LatentSpec,
    LayerSpec,
    LightningSpec,
    ModelSpec,
    NormSpec,
    RecurrenceSpec,
    RelativeBiasSpec,
    ShortConvolutionSpec,
)
from pyllm.workers.model_limits import check_cpu_layers, check_own_attention, check_states, check_supported

LATENT = LatentSpec(rank=32, rope_size=8, key_size=16, value_size=32, norm=NormSpec(epsilon=1e-6))
DELTA = GatedDeltaSpec(key_heads=1, value_heads=1, key_size=8, value_size=8, width=4, epsilon=1e-6)


def spec(*changes: dict[str, object]) -> ModelSpec:
    """The embedded model's first layers, each with some changes of its attention."""
    whole = read_checkpoint().spec
    layers = [
        msgspec.structs.replace(layer, attention=msgspec.structs.replace(layer.attention, **change))
        for layer, change in zip(whole.layers, changes, strict=False)
    ]
    return msgspec.structs.replace(whole, layers=tuple(layers))


def test_layers_may_differ_in_windows_caps_sinks_and_slopes() -> None:
    check_supported(spec({"window": 7}, {"soft_cap": 3.0, "sinks": True}, {"slopes": (0.5, 0.25)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (({"head_size": 63}, {"head_size": 63}), "heads of 63 dimensions are not supported: the number must be even"),
        (
            ({}, {"heads": 3, "kv_source": 0}),
            "a layer of LlamaForCausalLM with 3 query heads reads the keys of one with 9",
        ),
    ],
)
def test_what_none_computes_is_refused(changes: tuple[dict[str, object], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_supported(spec(*changes))


@pytest.mark.parametrize(
    ("device", "changes", "message"),
    [
        (
            "cuda",
            {"kv_cache_dir": "/blocks"},
            "and kv_cache_dir copies states of CPUs only so far: leave it out, or use",
        ),
        ("cpu", {"attention_backend": "other"}, "attention_backend other has none of them"),
        ("cpu", {"sparse_attention": "quest"}, "sparse_attention quest does not know these"),
        ("cpu", {"kv_transfer_config": {"kv_connector": "Other"}}, "the KV connector Other may move KV blocks without"),
    ],
)
def test_settings_that_know_no_states_are_refused(device: str, changes: dict[str, object], message: str) -> None:
    plain = spec({})
    layer = LayerSpec(recurrence=ShortConvolutionSpec(size=64, width=3))
    with_states = msgspec.structs.replace(plain, layers=(*plain.layers, layer))
    with pytest.raises(ConfigError, match=message):
        check_states(engine_config(changes), with_states, device)
    check_states(engine_config(changes), plain, device)
    for other in ("cpu", "cuda"):
        check_states(engine_config({"kernel_backend": "triton"}), with_states, other)


@pytest.mark.parametrize(
    ("recurrence", "message"),
    [
        (LightningSpec(heads=2, head_size=8, slopes=(0.5, 0.25), epsilon=1e-6), "has layers of lightning attention"),
        (DELTA, ""),
        (msgspec.structs.replace(DELTA, greatest_share=2.0), "delta rules with bounded decays or shares up to 2"),
        (msgspec.structs.replace(DELTA, strongest_decay=-5.0), "delta rules with bounded decays or shares up to 2"),
    ],
)
def test_states_that_only_cpus_compute_are_refused_elsewhere(recurrence: RecurrenceSpec, message: str) -> None:
    plain = spec({})
    model = msgspec.structs.replace(plain, layers=(*plain.layers, LayerSpec(recurrence=recurrence)))
    check_cpu_layers(engine_config({}), model, "cpu")
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        check_cpu_layers(engine_config({}), model, "cuda")


@pytest.mark.parametrize(
    "attention",
    [
        {
            "latent": msgspec.structs.replace(
                LATENT, index=IndexSpec(heads=2, size=16, count=8, norm=NormSpec(epsilon=1))
            )
        },
        {"relative_bias": RelativeBiasSpec(length=8, buckets=32)},
    ],
)
def test_attention_that_only_cpus_compute_is_refused_on_cards(attention: dict[str, Any]) -> None:
    check_cpu_layers(engine_config({}), spec(attention), "cpu")
    with pytest.raises(
        ConfigError, match="an index of tokens, or a relative position bias, and these run on CPUs only so far"
    ):
        check_cpu_layers(engine_config({}), spec(attention), "cuda")


def test_values_narrower_than_keys_are_for_own_attention_alone() -> None:
    for options in ({"sparse_attention": "quest"}, {"attention_backend": "other"}):
        with pytest.raises(ConfigError, match="values narrower than keys, and"):
            check_own_attention(engine_config(options), spec({"value_size": 32}, {"value_size": 32}))


def test_a_store_of_blocks_is_refused_where_there_are_none() -> None:
    plain, layer = spec({}), LayerSpec(recurrence=ShortConvolutionSpec(size=64, width=3))
    stored = engine_config({"kv_cache_dir": "/blocks"})
    check_states(stored, msgspec.structs.replace(plain, layers=(*plain.layers, layer)), "cpu")
    with pytest.raises(ConfigError, match="and none with KV blocks, beside which kv_cache_dir keeps states"):
        check_states(stored, msgspec.structs.replace(plain, layers=(layer,)), "cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attention_backend": "other"},
            "LlamaForCausalLM has layers of latent attention, and attention_back",
        ),
        ({"sparse_attention": "quest"}, "and sparse_attention quest does not know these: leave it out"),
    ],
)
def test_latents_are_refused_where_nothing_knows_them(options: dict[str, object], message: str) -> None:
    model, config = spec({"latent": LATENT}), engine_config(options)
    with pytest.raises(ConfigError, match=message):
        check_own_attention(config, model)
    check_own_attention(config, spec({}))
    check_own_attention(engine_config({"kernel_backend": "triton"}), model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (({}, {"heads": 18}), "has layers of unequal heads, and attention_backend other has none of them"),
        (({}, {"head_size": 32}), "has layers of unequal heads, and attention_backend other has none of them"),
        (({}, {"kv_source": 0}), "has layers that share keys and values, and attention_backend other has none of them"),
    ],
)
def test_other_attention_backends_know_no_unequal_layers(changes: tuple[dict[str, object], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_own_attention(engine_config({"attention_backend": "other"}), spec(*changes))
    check_supported(spec(*changes))
    check_own_attention(engine_config({}), spec(*changes))


def test_a_spec_travels() -> None:
    model = spec({"window": 7, "scale": 0.5, "latent": LATENT}, {"rope": None})
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=ModelSpec)
    assert decoded == model
    assert isinstance(decoded.attention, AttentionSpec)
