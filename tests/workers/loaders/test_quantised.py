"""Quantised folders: exact numbers, the nearest blocks, the shares of ranks, and damage that only a reader can see."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from pyllm_kernels.tensors import Array
from transformers import GptOssForCausalLM, LlamaForCausalLM, Mxfp4Config

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import ConfigError
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from pyllm.workers.loaders.weights import WHOLE, WeightReader
from tests.families.tiny_families import write_tiny_family
from tests.safetensors_arrays import load_file, save_file
from tests.tiny_model import write_tiny_model
from tests.tiny_mxfp4 import write_mxfp4
from tests.tiny_quantised import SIZES, VARIANTS, awq, bitnet, fp8, gptq, int8, packed, write_quantised

QUERY = "layers.0.attention.query.weight"
DOWN = "layers.1.feed_forward.down.weight"


def tiny(folder: Path, **sizes: object) -> str:
    return write_tiny_model(folder, **(SIZES | {"vocab_size": 260} | sizes))  # type: ignore[arg-type] # sizes are whole numbers


def reader_of(checkpoint: Checkpoint) -> WeightReader:
    return weight_reader(checkpoint, TensorTable(checkpoint))


def matrices(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    return {entry.name: (entry.shape[0], entry.shape[1]) for entry in checkpoint.tensors if entry.quantised is not None}


def read_whole(checkpoint: Checkpoint) -> dict[str, Array]:
    reader, found = reader_of(checkpoint), {}
    for entry in checkpoint.tensors:
        found[entry.name] = np.full(entry.shape, np.nan, np.float32)
        reader.read(entry.name, entry.shape, found[entry.name])
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_numbers_are_those_of_the_dequantised_model(tmp_path: Path, name: str) -> None:
    variant, _ = VARIANTS[name]
    folder = write_quantised(tiny(tmp_path / "tiny"), tmp_path / "quantised", variant, tmp_path / "floats")
    checkpoint = read_checkpoint(folder)
    assert checkpoint.quantization == variant.config["quant_method"]
    assert len(matrices(checkpoint)) == 14
    expected = read_whole(read_checkpoint(str(tmp_path / "floats")))
    found = read_whole(checkpoint)
    assert found.keys() == expected.keys()
    for parameter, numbers in found.items():
        np.testing.assert_array_equal(numbers, expected[parameter], parameter)


def test_blocks_may_cut_through_parts_of_a_head(tmp_path: Path) -> None:
    """DeepSeek's matrix of keys and values is in one tensor, and its rotary rows have another order."""
    source = write_tiny_family(tmp_path / "tiny", "deepseek-v3")
    folder = write_quantised(source, tmp_path / "quantised", fp8((16, 8)), tmp_path / "floats")
    expected, found = read_whole(read_checkpoint(str(tmp_path / "floats"))), read_whole(read_checkpoint(folder))
    assert found.keys() == expected.keys()
    for parameter, numbers in found.items():
        np.testing.assert_array_equal(numbers, expected[parameter], parameter)


@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_are_the_nearest_of_the_kernels(tmp_path: Path, name: str) -> None:
    variant, kind = VARIANTS[name]
    folder = write_quantised(tiny(tmp_path / "tiny"), tmp_path / "quantised", variant, tmp_path / "floats")
    checkpoint = read_checkpoint(folder)
    expected, reader = read_whole(read_checkpoint(str(tmp_path / "floats"))), reader_of(checkpoint)
    is_anew = (kind == "q8_0" and "8 bits" not in name and name != "int8 of groups") or "8 bits asymmetric" in name
    for parameter, shape in matrices(checkpoint).items():
        rows = reader.rows(parameter, shape, keep_quantised=True)
        assert rows.format == kind
        largest = float(np.abs(expected[parameter]).max())
        # Minimums and inverse scales are rounded to float16, and what is quantised anew its numbers to 8 bits.
        tolerance = largest / 127 if is_anew else largest * 2.0**-10 if kind == "q4_1" or "inverse" in name else 0.0
        np.testing.assert_allclose(rows.numbers(), expected[parameter], rtol=0, atol=tolerance)


def test_transformers_reads_the_same(tmp_path: Path) -> None:
    folder = write_quantised(tiny(tmp_path / "tiny"), tmp_path / "quantised", fp8((32, 32)))
    oracle = LlamaForCausalLM.from_pretrained(folder, dtype="float32").state_dict()
    checkpoint = read_checkpoint(folder)
    found = read_whole(checkpoint)
    for entry in checkpoint.tensors:
        np.testing.assert_array_equal(found[entry.name], oracle[entry.source.name].numpy(), entry.name)


def test_transformers_packs_three_values_alike() -> None:
    from transformers.integrations.bitnet import pack_weights  # It loads torch's compiler, which takes seconds.

    weight = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    found = bitnet().quantise(weight)
    packed = pack_weights(torch.from_numpy(np.sign(found.numbers)))
    np.testing.assert_array_equal(packed.numpy(), found.tensors["weight"])


@pytest.mark.parametrize("keep_quantised", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_share_is_a_part_of_the_whole(tmp_path: Path, name: str, keep_quantised: bool) -> None:
    variant, kind = VARIANTS[name]
    folder = write_quantised(tiny(tmp_path / "tiny"), tmp_path / "quantised", variant)
    checkpoint = read_checkpoint(folder)
    reader = reader_of(checkpoint)
    cuts = [(slice(64, 128), WHOLE), (slice(3, 29), WHOLE), (WHOLE, slice(32, 64)), (slice(7), slice(0, 32))]
    for rows, columns in cuts:
        whole = reader.rows(QUERY, (128, 64), keep_quantised=keep_quantised).numbers()
        share = reader.rows(QUERY, (128, 64), rows, columns, keep_quantised=keep_quantised)
        assert not keep_quantised or share.format == kind or share.is_int8  # of one group
        np.testing.assert_array_equal(share.numbers(), whole[rows, columns])
    # A cut that no block allows.
    odd = reader.rows(DOWN, (64, 128), columns=slice(20, 100), keep_quantised=keep_quantised)
    whole = reader.rows(DOWN, (64, 128)).numbers()
    np.testing.assert_array_equal(odd.numbers(), whole[:, 20:100])
    assert odd.format in {"int8", "float32", "float8_e4m3fn"}


@pytest.mark.parametrize("name", ["awq", "gptq", "gptq in act-order", "packed", "int8", "fp8 of blocks"])
def test_fused_tensors_are_cut_into_their_parts(tmp_path: Path, name: str) -> None:
    variant, _ = VARIANTS[name]
    source = Path(tiny(tmp_path / "tiny"))
    tensors = load_file(source / "model.safetensors")
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        parts = [tensors.pop(f"{prefix}.self_attn.{part}_proj.weight") for part in "qkv"]
        tensors[f"{prefix}.self_attn.qkv_proj.weight"] = np.concatenate(parts)
        parts = [tensors.pop(f"{prefix}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        tensors[f"{prefix}.mlp.gate_up_proj.weight"] = np.concatenate(parts)
    save_file(tensors, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["Phi3ForCausalLM"]}))
    folder = write_quantised(str(source), tmp_path / "quantised", variant, tmp_path / "floats")
    expected, checkpoint = read_whole(read_checkpoint(str(tmp_path / "floats"))), read_checkpoint(folder)
    found = read_whole(checkpoint)
    for parameter, numbers in found.items():
        np.testing.assert_array_equal(numbers, expected[parameter], parameter)
    key = reader_of(checkpoint).rows("layers.0.attention.key.weight", (64, 64), slice(5, 37), keep_quantised=True)
    assert np.abs(key.numbers() - expected["layers.0.attention.key.weight"][5:37]).max() < 0.02


@pytest.mark.parametrize("name", ["awq", "packed asymmetric", "gptq 8 bits"])
def test_rows_may_be_reordered(tmp_path: Path, name: str) -> None:
    variant, kind = VARIANTS[name]
    source = Path(tiny(tmp_path / "tiny"))
    tensors = load_file(source / "model.safetensors")
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp"
        parts = [tensors.pop(f"{prefix}.{part}_proj.weight") for part in ("gate", "up")]
        tensors[f"{prefix}.gate_up_proj.weight"] = np.concatenate(parts)
    save_file(tensors, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps(config | {"architectures": ["GlmForCausalLM"], "attention_bias": False})
    )
    folder = write_quantised(str(source), tmp_path / "quantised", variant, tmp_path / "floats")
    expected, checkpoint = read_whole(read_checkpoint(str(tmp_path / "floats"))), read_checkpoint(folder)
    np.testing.assert_array_equal(read_whole(checkpoint)[QUERY], expected[QUERY])
    rows = reader_of(checkpoint).rows(QUERY, (128, 64), slice(33, 97), keep_quantised=True)
    assert rows.format == kind
    assert np.abs(rows.numbers() - expected[QUERY][33:97]).max() < 0.02


def test_tensors_at_odd_bytes_are_read(tmp_path: Path) -> None:
    for number, variant in enumerate((awq(), gptq(act_order=True), packed(symmetric=False), int8(symmetric=False))):
        source = tiny(tmp_path / f"tiny{number}")
        folder = Path(write_quantised(source, tmp_path / f"{number}", variant, tmp_path / f"floats{number}"))
        content = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        moved = (length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :]
        (folder / "model.safetensors").write_bytes(moved)
        expected = read_whole(read_checkpoint(str(tmp_path / f"floats{number}")))
        for parameter, numbers in read_whole(read_checkpoint(str(folder))).items():
            np.testing.assert_array_equal(numbers, expected[parameter])


def test_scales_that_float16_cannot_hold_make_floats(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(write_quantised(tiny(tmp_path / "tiny"), tmp_path / "quantised", packed()))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight_scale"
    tensors[name] = tensors[name].astype(np.float32) * np.float32(2.0**-30)
    save_file(tensors, folder / "model.safetensors")
    checkpoint = read_checkpoint(str(folder))
    reader = reader_of(checkpoint)
    with caplog.at_level(logging.INFO):
        rows = reader.rows(QUERY, (128, 64), keep_quantised=True)
        assert reader.rows(DOWN, (64, 128), keep_quantised=True).format == "q4_0"
        reader.rows(QUERY, (128, 64), keep_quantised=True)
    assert (rows.format, rows.is_int8) == ("int8", False)
    np.testing.assert_array_equal(rows.numbers(), read_whole(checkpoint)[QUERY])
    assert [record.getMessage() for record in caplog.records] == [
        "compressed-tensors weights are multiplied as floats where float16 cannot hold their scales",
        "compressed-tensors weights are multiplied as Q4_0",
    ]


@pytest.mark.parametrize("name", ["awq", "gptq in act-order", "packed", "int8", "int8 of groups", "fp8 of blocks"])
def test_scales_that_are_no_numbers_are_refused(tmp_path: Path, name: str) -> None:
    folder = Path(write_quantised(tiny(tmp_path / "tiny"), tmp_path / "quantised", VARIANTS[name][0]))
    tensors = load_file(folder / "model.safetensors")
    scales = next(
        name for name in tensors if "layers.0.self_attn.q_proj" in name and "scale" in name and "input" not in name
    )
    tensors[scales].reshape(-1)[3] = np.inf
    save_file(tensors, folder / "model.safetensors")
    checkpoint = read_checkpoint(str(folder))
    with pytest.raises(ConfigError, match=f"parameter '{QUERY}' has a NaN or an infinity"):
        read_whole(checkpoint)


def tiny_mxfp4(folder: Path) -> tuple[str, str]:
    """A gpt-oss in MXFP4, and the folder of what its numbers are."""
    source = write_tiny_family(folder / "tiny", "gpt-oss")
    return write_mxfp4(source, folder / "quantised", folder / "floats"), str(folder / "floats")


def test_numbers_of_mxfp4_are_those_of_the_dequantised_model(tmp_path: Path) -> None:
    folder, floats = tiny_mxfp4(tmp_path)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.quantization == "mxfp4"
    assert len(matrices(checkpoint)) == 3 * 6 * 3
    expected, found = read_whole(read_checkpoint(floats)), read_whole(checkpoint)
    assert found.keys() == expected.keys()
    for parameter, numbers in found.items():
        np.testing.assert_array_equal(numbers, expected[parameter], parameter)


def test_transformers_reads_the_same_mxfp4(tmp_path: Path) -> None:
    folder, _ = tiny_mxfp4(tmp_path)
    method = Mxfp4Config(dequantize=True)
    oracle = GptOssForCausalLM.from_pretrained(folder, dtype="float32", quantization_config=method).state_dict()
    found = read_whole(read_checkpoint(folder))
    for layer in range(3):
        for expert in range(6):
            ours, theirs = f"layers.{layer}.feed_forward.experts.{expert}", f"model.layers.{layer}.mlp.experts"
            gate_up = oracle[f"{theirs}.gate_up_proj"][expert].T.numpy()
            np.testing.assert_array_equal(found[f"{ours}.gate.weight"], gate_up[0::2])
            np.testing.assert_array_equal(found[f"{ours}.up.weight"], gate_up[1::2])
            down = oracle[f"{theirs}.down_proj"][expert].T.numpy()
            np.testing.assert_array_equal(found[f"{ours}.down.weight"], down)


@pytest.mark.parametrize("keep_quantised", [False, True])
def test_a_share_of_mxfp4_is_a_part_of_the_whole(tmp_path: Path, keep_quantised: bool) -> None:
    folder, floats = tiny_mxfp4(tmp_path)
    reader, whole = reader_of(read_checkpoint(folder)), read_whole(read_checkpoint(floats))
    name = "layers.1.feed_forward.experts.4.down.weight"
    cuts = [(WHOLE, WHOLE, "mxfp4"), (slice(3, 29), slice(32, 64), "mxfp4"), (WHOLE, slice(20, 50), "float32")]
    for rows, columns, kind in cuts:
        share = reader.rows(name, (32, 64), rows, columns, keep_quantised=keep_quantised)
        assert share.format == kind
        np.testing.assert_array_equal(share.numbers(), whole[name][rows, columns])


def test_an_exponent_that_is_no_number_is_refused(tmp_path: Path) -> None:
    folder, _ = tiny_mxfp4(tmp_path)
    tensors = load_file(f"{folder}/model.safetensors")
    tensors["model.layers.1.mlp.experts.gate_up_proj_scales"][3, 7] = 255
    save_file(tensors, f"{folder}/model.safetensors")
    name = "layers.1.feed_forward.experts.3.up.weight"  # the odd rows
    with pytest.raises(ConfigError, match=f"parameter '{name}' has a NaN or an infinity"):
        read_whole(read_checkpoint(folder))
