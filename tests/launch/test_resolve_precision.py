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
    assert fastest_quantization(checkpoint, ranks, flags) == quantization


@pytest.mark.parametrize(
    ("name", "ranks", "kind", "quantization"),
    [
        ("layers.3.attention.output.weight", 1, "Q4_K", "int8"),  # 576 columns
        ("layers.3.attention.output.weight", 3, "Q5_0", "gguf"),
        ("layers.29.feed_forward.down.weight", 3, "Q4_K", "gguf"),  # 1,536 columns
        ("layers.29.feed_forward.down.weight", 4, "Q4_K", "int8"),
        ("layers.29.feed_forward.down.weight", 9, "F16", "int8"),  # the other layers' are Q4_1
        ("layers.29.feed_forward.gate.weight", 1, "Q4_K", "gguf"),  # whose rows are shared
    ],
)
def test_no_matrix_is_cut_within_its_blocks(name: str, ranks: int, kind: str, quantization: str) -> None:
    _, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    tensors = [
        msgspec.structs.replace(entry, source=msgspec.structs.replace(entry.source, type=kind))
        if entry.name == name
        else entry
        for entry in checkpoint.tensors
    ]
    changed = msgspec.structs.replace(checkpoint, tensors=tuple(tensors))
    assert fastest_quantization(changed, ranks, set()) == quantization


def test_the_embedded_model_is_computed_in_integers_unless_a_dtype_is_asked_for() -> None:
    config, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    expected = fastest_quantization(checkpoint, 1, cpu_features.instructions())
    assert (config.model.quantization, config.model.dtype) == (expected, "bfloat16")
    config, _ = resolve_config(engine_config({"device": "cpu", "dtype": "float32"}))
    assert config.model.quantization == "none"
