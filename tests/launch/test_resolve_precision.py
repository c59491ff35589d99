"""What `auto` stands for."""

import msgspec
import pytest

from pyllm.config.options import engine_config
from pyllm.launch import cpu_features
from pyllm.launch.resolve import fastest_quantization, resolve_config


@pytest.mark.parametrize(
    ("ranks", "flags", "quantization"),
    [
        (1, {"avx2", "avx512_vnni"}, "gguf"),
        (3, {"avx2"}, "gguf"),
        (1, {"avx512_vnni", "amx_int8"}, "int8"),
        (9, {"avx2"}, "int8"),  # 64 features of attention a rank, but 170 of the feed-forward layer
    ],
)
def test_a_quantised_file_is_computed_as_is_fastest_here(ranks: int, flags: set[str], quantization: str) -> None:
    _, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    assert fastest_quantization(checkpoint.spec, ranks, flags) == quantization


def test_neither_attention_nor_feed_forward_is_cut_within_a_block() -> None:
    _, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    layer = checkpoint.spec.layers[0]
    narrow = msgspec.structs.replace(layer.attention, heads=3, head_size=24)
    uneven = msgspec.structs.replace(checkpoint.spec, layers=(msgspec.structs.replace(layer, attention=narrow),))
    assert fastest_quantization(uneven, 1, set()) == "int8"


def test_the_embedded_model_is_computed_in_integers_unless_a_dtype_is_asked_for() -> None:
    config, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    expected = fastest_quantization(checkpoint.spec, 1, cpu_features.instructions())
    assert (config.model.quantization, config.model.dtype) == (expected, "bfloat16")
    config, _ = resolve_config(engine_config({"device": "cpu", "dtype": "float32"}))
    assert config.model.quantization == "none"
