"""The two readers of weights: exact values, shares, dtypes, and both of q's and k's row orders."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from pyllm_kernels.tensors import Array, numpy_dtype
from transformers import LlamaForCausalLM

from pyllm.checkpoint.gguf import read_gguf
from pyllm.checkpoint.reader import embedded_model, read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import ConfigError
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from tests.safetensors_arrays import load_file, save_file
from tests.tiers import full
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model

QUERY = "layers.1.attention.query.weight"
DOWN = "layers.0.feed_forward.down.weight"


def read_all(checkpoint: Checkpoint, dtype: str = "float32") -> dict[str, Array]:
    reader = weight_reader(checkpoint, TensorTable(checkpoint))
    tensors = {}
    for entry in checkpoint.tensors:
        tensors[entry.name] = np.full(entry.shape, np.nan, numpy_dtype(dtype))
        reader.read(entry.name, entry.shape, tensors[entry.name])
    return tensors


@pytest.fixture(params=["tiny", full("embedded")])
def gguf_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with weights of four bits, in the row order of llama.cpp."""
    if request.param == "embedded":
        return embedded_model()
    source = write_tiny_model(tmp_path / "source", heads=4, kv_heads=2, hidden_size=64, intermediate_size=96)
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, quantisation=gguf.GGMLQuantizationType.Q4_1)
    return path


def test_gguf_weights_equal_those_of_transformers(tmp_path: Path, gguf_file: Path) -> None:
    oracle = LlamaForCausalLM.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name, dtype="float32")
    expected = oracle.state_dict()
    checkpoint = read_checkpoint(str(gguf_file))
    found = read_all(checkpoint)
    # A folder of as many layers tells transformers' name of each parameter.
    folder = write_tiny_model(tmp_path / "names", layers=len(checkpoint.spec.layers))
    names = {entry.name: entry.source.name for entry in read_checkpoint(folder).tensors}
    assert {names[name] for name in found} == expected.keys() - {"lm_head.weight"}
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, expected[names[name]].numpy(), name)


def test_safetensors_are_read_as_they_are(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path))
    expected = load_file(checkpoint.files[0])
    found = read_all(checkpoint)
    for entry in checkpoint.tensors:
        np.testing.assert_array_equal(found[entry.name], expected[entry.source.name])


def test_weights_of_64_bits_become_floats(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    expected = load_file(folder / "model.safetensors")
    save_file({name: found.astype(np.float64) for name, found in expected.items()}, folder / "model.safetensors")
    checkpoint = read_checkpoint(str(folder))
    found, reader = read_all(checkpoint), weight_reader(checkpoint, TensorTable(checkpoint))
    for entry in checkpoint.tensors:
        np.testing.assert_array_equal(found[entry.name], expected[entry.source.name])
    entry = next(entry for entry in checkpoint.tensors if entry.name == DOWN)
    rows = reader.rows(DOWN, (48, 96), slice(8, 24), slice(32, None))
    assert rows.format == "float32"
    np.testing.assert_array_equal(rows.numbers(), expected[entry.source.name][8:24, 32:])


@pytest.mark.parametrize("quantisation", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ2_0"])
def test_every_gguf_type_gives_nearly_the_weights_it_was_made_from(tmp_path: Path, quantisation: str) -> None:
    width = 256 if quantisation == "TQ2_0" else 64
    source = write_tiny_model(
        tmp_path / "tiny", hidden_size=width, intermediate_size=width, head_dim=width // 2, heads=2, kv_heads=1
    )
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, quantisation=gguf.GGMLQuantizationType[quantisation])
    original, found = read_all(read_checkpoint(source)), read_all(read_gguf(path, "")[0])
    assert found.keys() == original.keys()
    for name, tensor in found.items():
        if tensor.ndim == 1 or quantisation == "F32":
            np.testing.assert_array_equal(tensor, original[name])
        elif quantisation == "TQ2_0":  # Three values to a weight: only the signs of the larger ones are left.
            agree = np.sign(tensor) * np.sign(original[name])
            assert (agree >= 0).all()
            assert agree.mean() > 0.1
        else:
            np.testing.assert_allclose(tensor, original[name], rtol=0.02, atol=0.1)


@pytest.mark.parametrize("quantisation", ["F32", "F16", "Q4_0", "Q4_1", "Q5_1", "Q8_0", "TQ2_0", "IQ2_XXS", "IQ3_S"])
@pytest.mark.parametrize("name", [QUERY, DOWN])
@pytest.mark.parametrize("keep_quantised", [True, False])
def test_rows_are_those_of_the_file(tmp_path: Path, quantisation: str, name: str, keep_quantised: bool) -> None:
    width = 256 if quantisation in {"TQ2_0", "IQ2_XXS", "IQ3_S"} else 32
    source = write_tiny_model(
        tmp_path / "tiny", hidden_size=2 * width, intermediate_size=3 * width, head_dim=width, heads=2, kv_heads=1
    )
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, quantisation=gguf.GGMLQuantizationType[quantisation])
    checkpoint = read_gguf(path, "")[0]
    shape = next(entry.shape for entry in checkpoint.tensors if entry.name == name)
    reader = weight_reader(checkpoint, TensorTable(checkpoint))
    rows, columns = slice(16, 48), slice(width, None)
    expected = np.empty((32, shape[1] - width), np.float32)
    reader.read(name, shape, expected, rows, columns)
    found = reader.rows(name, (shape[0], shape[1]), rows, columns, keep_quantised)
    kinds = {"F32": "float32", "F16": "float16", "TQ2_0": "q4_0" if keep_quantised else "float32"}
    assert found.format == kinds.get(quantisation, quantisation.lower())
    np.testing.assert_array_equal(found.numbers(), expected)


def test_columns_that_cut_through_blocks_are_floats_or_refused(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "tiny", hidden_size=64)
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path, quantisation=gguf.GGMLQuantizationType.Q4_0)
    checkpoint = read_gguf(path, "")[0]
    shape = next(entry.shape for entry in checkpoint.tensors if entry.name == QUERY)
    reader = weight_reader(checkpoint, TensorTable(checkpoint))
    with pytest.raises(ConfigError, match=r"columns 0 to 16 of 64 cut through its blocks of 32; use fewer"):
        reader.rows(QUERY, (shape[0], 64), columns=slice(16), keep_quantised=True)
    found = reader.rows(QUERY, (shape[0], 64), columns=slice(16))
    whole = np.empty(shape, np.float32)
    reader.read(QUERY, shape, whole)
    assert found.format == "float32"
    np.testing.assert_array_equal(found.numbers(), whole[:, :16])


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_share_is_a_part_of_the_whole(tmp_path: Path, kind: str, dtype: str) -> None:
    source = write_tiny_model(tmp_path / "tiny", hidden_size=64)
    checkpoint = read_checkpoint(source)
    if kind == "gguf":
        path = tmp_path / "tiny.gguf"
        write_tiny_gguf(source, path, quantisation=gguf.GGMLQuantizationType.Q8_0)
        checkpoint = read_gguf(path, "")[0]
    whole = read_all(checkpoint, dtype)
    reader = weight_reader(checkpoint, TensorTable(checkpoint))
    rows = np.empty((32, 64), numpy_dtype(dtype))
    reader.read(QUERY, (96, 64), rows, rows=slice(32, 64))
    np.testing.assert_array_equal(rows, whole[QUERY][32:64])
    columns = np.empty((64, 40), numpy_dtype(dtype))
    reader.read(DOWN, (64, 96), columns, columns=slice(8, 48))
    np.testing.assert_array_equal(columns, whole[DOWN][:, 8:48])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_files_keep_every_bit(tmp_path: Path, dtype: str) -> None:
    source = Path(write_tiny_model(tmp_path))
    tensors = {
        name: array.astype(numpy_dtype(dtype)) for name, array in load_file(source / "model.safetensors").items()
    }
    save_file(tensors, source / "model.safetensors")
    checkpoint = read_checkpoint(str(source))
    assert checkpoint.spec.dtype == dtype
    found = read_all(checkpoint, dtype)
    for entry in checkpoint.tensors:
        np.testing.assert_array_equal(found[entry.name], tensors[entry.source.name])


def test_tensors_at_odd_bytes_are_read(tmp_path: Path) -> None:
    source = Path(write_tiny_model(tmp_path))
    file = source / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    file.write_bytes((length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :])
    expected = load_file(file)
    checkpoint = read_checkpoint(str(source))
    found = read_all(checkpoint)
    for entry in checkpoint.tensors:
        np.testing.assert_array_equal(found[entry.name], expected[entry.source.name])


def test_a_file_that_shrank_is_refused(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path))
    last = max(checkpoint.tensors, key=lambda entry: entry.source.offset)
    content = Path(checkpoint.files[0]).read_bytes()
    Path(checkpoint.files[0]).write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=f"{last.source.name}' ends behind the end of its file"):
        TensorTable(checkpoint).find(last.name, last.shape)


def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "source", hidden_size=64, intermediate_size=128)
    for quantisation in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0):
        path = Path(write_tiny_gguf(source, tmp_path / "tiny.gguf", quantisation=quantisation))
        checkpoint, _ = read_gguf(path, "")
        (down,) = (entry.source for entry in checkpoint.tensors if entry.name == DOWN)
        content = bytearray(path.read_bytes())
        content[down.offset : down.offset + 2] = np.float16(np.nan).tobytes()
        path.write_bytes(content)
        reader = weight_reader(checkpoint, TensorTable(checkpoint))
        with pytest.raises(ConfigError, match="NaN"):
            reader.read(DOWN, (64, 128), np.empty((64, 128), np.float32))


@pytest.mark.parametrize(
    ("name", "parameter"),
    [("model.norm.weight", "norm.weight"), ("model.layers.0.mlp.down_proj.weight", DOWN)],
)
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, name: str, parameter: str) -> None:
    folder = write_tiny_model(tmp_path)
    tensors = load_file(f"{folder}/model.safetensors")
    tensors[name].flat[3] = np.inf
    save_file(tensors, f"{folder}/model.safetensors")
    with pytest.raises(ConfigError, match=f"parameter '{parameter}' has a NaN or an infinity"):
        read_all(read_checkpoint(folder))


def test_reading_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path))
    before = Path(checkpoint.files[0]).read_bytes()
    _, content = TensorTable(checkpoint).find("norm.weight", (48,))
    content[:] = 0
    assert Path(checkpoint.files[0]).read_bytes() == before
