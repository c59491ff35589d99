"""A model that no kernel computes is refused by name, before any process starts."""

import msgspec
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.options import DeviceConfig
from pyllm.errors import ConfigError
from pyllm.families.spec import AttentionSpec, ModelSpec, RoutingSpec
from pyllm.workers.kernel_features import check_supported, features


def spec(*changes: dict[str, object]) -> ModelSpec:
    """The embedded model's first layers, each with some changes of its attention."""
    whole = read_checkpoint().spec
    layers = [
        msgspec.structs.replace(layer, attention=msgspec.structs.replace(layer.attention, **change))
        for layer, change in zip(whole.layers, changes, strict=False)
    ]
    return msgspec.structs.replace(whole, layers=tuple(layers))


def test_windows_caps_and_norms_are_computed_everywhere() -> None:
    model = spec({"window": 7}, {"soft_cap": 3.0}, {})
    assert features(model).keys() == {"window", "soft_cap"}
    for backend in ("auto", "cpu", "reference", "triton"):
        check_supported(model, DeviceConfig(kernel_backend=backend), "cpu", {"float32"})


def test_experts_are_computed_everywhere() -> None:
    model = spec({}, {})
    first, second = model.layers
    experts = msgspec.structs.replace(second.feed_forward, routing=RoutingSpec(experts=6, active=2))
    model = msgspec.structs.replace(model, layers=(first, msgspec.structs.replace(second, feed_forward=experts)))
    assert features(model).keys() == {"routing"}
    for backend, device in (
        ("auto", "cpu"),
        ("auto", "cuda"),
        ("cpu", "cpu"),
        ("reference", "cpu"),
        ("triton", "cuda"),
    ):
        check_supported(model, DeviceConfig(kernel_backend=backend), device, {"bfloat16"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (({}, {"sinks": True}), "the cpu kernels do not compute attention sinks, which LlamaForCausalLM needs"),
        (({}, {"kv_heads": 1}), "the layers of LlamaForCausalLM differ in kv_heads"),
        (({}, {"head_size": 32}), "differ in head_size"),
        (({"head_size": 63}, {"head_size": 63}), "heads of 63 dimensions are not supported: the number must be even"),
    ],
)
def test_what_none_computes_is_refused(changes: tuple[dict[str, object], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_supported(spec(*changes), DeviceConfig(), "cpu", {"bfloat16"})


def test_the_backend_that_would_compute_it_is_named() -> None:
    model = spec({"sinks": True})
    for config, dtypes, device, backend in (
        (DeviceConfig(), {"float16"}, "cpu", "reference"),
        (DeviceConfig(), {"bfloat16"}, "cuda", "triton"),
        (DeviceConfig(kernel_backend="reference"), {"float32"}, "cpu", "reference"),
    ):
        with pytest.raises(ConfigError, match=f"the {backend} kernels do not compute"):
            check_supported(model, config, device, dtypes)


def test_a_spec_travels() -> None:
    model = spec({"window": 7, "scale": 0.5}, {"rope": None})
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=ModelSpec)
    assert decoded == model
    assert isinstance(decoded.attention, AttentionSpec)
