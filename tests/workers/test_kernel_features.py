"""A model that no kernel computes is refused by name, before any process starts."""

import msgspec
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.options import DeviceConfig
from pyllm.errors import ConfigError
from pyllm.families.spec import AttentionSpec, ClampedGate, ModelSpec, RoutingSpec
from pyllm.workers.kernel_features import check_supported, features


def spec(*changes: dict[str, object]) -> ModelSpec:
    """The embedded model's first layers, each with some changes of its attention."""
    whole = read_checkpoint().spec
    layers = [
        msgspec.structs.replace(layer, attention=msgspec.structs.replace(layer.attention, **change))
        for layer, change in zip(whole.layers, changes, strict=False)
    ]
    return msgspec.structs.replace(whole, layers=tuple(layers))


def test_windows_caps_and_sinks_are_computed_everywhere() -> None:
    model = spec({"window": 7}, {"soft_cap": 3.0, "sinks": True}, {})
    assert features(model).keys() == {"window", "soft_cap", "sinks"}
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
        (({}, {"kv_heads": 1}), "the layers of LlamaForCausalLM differ in kv_heads"),
        (({}, {"head_size": 32}), "differ in head_size"),
        (({"head_size": 63}, {"head_size": 63}), "heads of 63 dimensions are not supported: the number must be even"),
    ],
)
def test_what_none_computes_is_refused(changes: tuple[dict[str, object], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_supported(spec(*changes), DeviceConfig(), "cpu", {"bfloat16"})


def with_experts(**changes: object) -> ModelSpec:
    model = spec({})
    feed_forward = msgspec.structs.replace(model.layers[0].feed_forward, **changes)
    return msgspec.structs.replace(model, layers=(msgspec.structs.replace(model.layers[0], feed_forward=feed_forward),))


def test_what_experts_have_is_computed_on_cpus_and_refused_by_name_elsewhere() -> None:
    routing, gate = RoutingSpec(experts=4, active=2), ClampedGate(limit=7.0, alpha=1.702)
    for changes, text in (
        ({"bias": True}, "biases of experts"),
        ({"bias": True, "clamped_gate": gate}, "biases of experts, a clamped gate"),
    ):
        model = with_experts(routing=routing, **changes)
        check_supported(model, DeviceConfig(), "cpu", {"bfloat16"})
        check_supported(model, DeviceConfig(), "cpu", {"float16"})  # by the reference
        for config, device in ((DeviceConfig(), "cuda"), (DeviceConfig(kernel_backend="triton"), "cpu")):
            with pytest.raises(ConfigError, match=f"the triton kernels do not compute {text}, which Llama"):
                check_supported(model, config, device, {"bfloat16"})
    assert features(with_experts(bias=True)) == {}


def test_a_spec_travels() -> None:
    model = spec({"window": 7, "scale": 0.5}, {"rope": None})
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=ModelSpec)
    assert decoded == model
    assert isinstance(decoded.attention, AttentionSpec)
