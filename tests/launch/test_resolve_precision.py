"""What `auto` stands for."""

import logging
from pathlib import Path

import gguf
import msgspec
import pyllm_kernels
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.launch.resolve import fastest_quantization, resolve_config, resolve_precision
from pyllm.machine.cpu_features import instructions
from pyllm.machine.cuda_driver import VisibleCard
from pyllm.machine.processor import LEVELS, kernel_levels
from tests.families.tiny_families import write_tiny_family
from tests.tiny_gguf import write_gpt_oss_gguf
from tests.tiny_model import write_tiny_model
from tests.tiny_quantised import SIZES, VARIANTS, write_quantised


@pytest.mark.parametrize(
    ("ranks", "instruction_set", "quantization"),
    [
        (1, "avx512_vnni", "gguf"),
        (3, "avx2", "gguf"),
        (1, "amx", "int8"),
        (9, "avx2", "int8"),  # 64 features of attention a rank, but 170 of the feed-forward layer
    ],
)
def test_a_quantised_file_is_computed_as_is_fastest_here(ranks: int, instruction_set: str, quantization: str) -> None:
    _, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    assert fastest_quantization(checkpoint, ranks, instruction_set) == quantization


def test_mxfp4_stays_in_4_bits_on_any_processor(tmp_path: Path) -> None:
    source = write_tiny_family(tmp_path / "tiny", "gpt-oss")
    path = write_gpt_oss_gguf(source, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.MXFP4)
    engine, checkpoint = resolve_config(engine_config({"device": "cpu", "model": path}))
    assert (engine.model.quantization, engine.model.dtype) == ("gguf", "bfloat16")
    for instruction_set in ("avx2", "amx"):
        assert fastest_quantization(checkpoint, 2, instruction_set) == "gguf"


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
    assert fastest_quantization(changed, ranks, "portable") == quantization


def test_the_embedded_model_is_computed_in_integers_unless_a_dtype_is_asked_for() -> None:
    config, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    expected = fastest_quantization(checkpoint, 1, pyllm_kernels.instruction_set())
    assert (config.model.quantization, config.model.dtype) == (expected, "bfloat16")
    config, _ = resolve_config(engine_config({"device": "cpu", "dtype": "float32"}))
    assert config.model.quantization == "none"


def test_instructions_can_be_chosen_among_those_of_the_processor() -> None:
    config, _ = resolve_config(engine_config({"device": "cpu", "instruction_set": "portable"}))
    assert config.model.quantization == "gguf"
    for missing in LEVELS.keys() - kernel_levels(instructions()):
        with pytest.raises(ConfigError, match=f"instruction_set {missing}: this processor has portable"):
            resolve_config(engine_config({"device": "cpu", "instruction_set": missing}))


@pytest.mark.parametrize(
    ("capability", "options", "expected"),
    [
        (90, {}, ("bfloat16", "gguf", "bfloat16")),
        (80, {}, ("bfloat16", "gguf", "bfloat16")),
        (75, {}, ("float16", "gguf", "float16")),
        (90, {"kv_cache_dtype": "fp8"}, ("bfloat16", "gguf", "fp8")),
        (90, {"quantization": "none"}, ("bfloat16", "none", "bfloat16")),
        (75, {"quantization": "none"}, ("float16", "none", "float16")),
        (90, {"dtype": "float32"}, ("float32", "none", "float32")),
        (90, {"dtype": "float16", "quantization": "gguf"}, ("float16", "gguf", "float16")),
        (90, {"tensor_parallel_size": 9}, ("bfloat16", "none", "bfloat16")),  # which would cut through blocks
    ],
)
def test_a_quantised_file_has_two_bytes_a_number_on_gpus(
    capability: int, options: dict[str, object], expected: tuple[str, str, str]
) -> None:
    _, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    cards = (VisibleCard(90, 1 << 37), VisibleCard(capability, 1 << 37))
    assert resolve_precision(engine_config(options), checkpoint, "cuda", cards) == expected


def test_int8_is_for_cpus() -> None:
    _, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    with pytest.raises(ConfigError, match="quantization int8 is for CPUs, and the device is cuda: use quantization"):
        resolve_precision(engine_config({"quantization": "int8"}), checkpoint, "cuda")


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A folder of each method."""
    source = write_tiny_model(tmp_path_factory.mktemp("tiny"), **SIZES)
    names = {"awq": "awq", "gptq": "gptq", "compressed-tensors": "int8", "fp8": "fp8 of blocks"}
    return {
        method: write_quantised(source, tmp_path_factory.mktemp(method), VARIANTS[name][0])
        for method, name in names.items()
    }


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors", "fp8"])
def test_a_quantised_folder_is_computed_by_its_own_method(quantised: dict[str, str], method: str) -> None:
    checkpoint = read_checkpoint(quantised[method])

    def precision(device: str, **options: object) -> tuple[str, str, str]:
        return resolve_precision(engine_config(options), checkpoint, device)

    assert precision("cpu") == ("bfloat16", method, "bfloat16")
    for dtype in ("float32", "float16"):
        assert precision("cpu", quantization=method, dtype=dtype) == (dtype, method, "bfloat16")
    assert precision("cpu", dtype="float32") == ("float32", "none", "float32")
    assert precision("cpu", quantization="int8") == ("bfloat16", "int8", "bfloat16")
    assert precision("cpu", quantization="none") == ("float32", "none", "float32")
    assert precision("cuda") == precision("cuda", quantization=method) == ("bfloat16", method, "bfloat16")
    old = VisibleCard(75, 1 << 34)
    assert resolve_precision(engine_config({}), checkpoint, "cuda", [old]) == ("float16", method, "float16")
    assert precision("cuda", quantization=method, dtype="float16") == ("float16", method, "float16")
    assert precision("cuda", quantization="none") == ("float32", "none", "float32")
    other = "gptq" if method == "awq" else "awq"
    with pytest.raises(ConfigError, match=f"quantization {other} is not the model's, which is quantised by {method}"):
        precision("cpu", quantization=other)
    with pytest.raises(ConfigError, match="quantization gguf needs a GGUF file"):
        precision("cpu", quantization="gguf")


def test_methods_of_folders_are_not_those_of_other_models(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path))
    with pytest.raises(ConfigError, match="quantization awq is not the model's, which is not quantised like this"):
        resolve_precision(engine_config({"quantization": "awq"}), checkpoint, "cpu")


def test_dequantised_weights_are_told(quantised: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        resolve_config(engine_config({"model": quantised["awq"], "device": "cpu", "quantization": "none"}))
    assert "the weights, which are awq, are dequantised to float32 on cpu" in caplog.text
