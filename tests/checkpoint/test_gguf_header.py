"""GGUF headers by our own reader, beside the gguf package's; and models in several files."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from pyllm_kernels import FLOAT_DTYPES, GGUF_BLOCKS

from pyllm.checkpoint import gguf_types
from pyllm.checkpoint.gguf import read_gguf
from pyllm.checkpoint.gguf_header import part_names, read_header
from pyllm.checkpoint.reader import embedded_model
from pyllm.errors import ConfigError
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.tensor_table import TensorTable
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model

KINDS: dict[str, tuple[gguf.GGUFValueType, Any]] = {
    "u8": (gguf.GGUFValueType.UINT8, 200),
    "i8": (gguf.GGUFValueType.INT8, -100),
    "u16": (gguf.GGUFValueType.UINT16, 60_000),
    "i16": (gguf.GGUFValueType.INT16, -30_000),
    "i32": (gguf.GGUFValueType.INT32, -(1 << 30)),
    "u64": (gguf.GGUFValueType.UINT64, 1 << 60),
    "i64": (gguf.GGUFValueType.INT64, -(1 << 60)),
    "f64": (gguf.GGUFValueType.FLOAT64, 1e-300),
    "bool": (gguf.GGUFValueType.BOOL, True),
    "text": (gguf.GGUFValueType.STRING, "Grüße"),
    "texts": (gguf.GGUFValueType.ARRAY, ["", "é", "Ġthe"]),
    "floats": (gguf.GGUFValueType.ARRAY, [0.5, -1.0]),
    "bools": (gguf.GGUFValueType.ARRAY, [True, False]),
}


def test_fields_and_tensors_are_those_of_the_gguf_package() -> None:
    path = embedded_model()
    header, expected = read_header(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in expected.fields.items() if not name.startswith("GGUF.")}
    assert header.fields == fields
    tensors = [
        (
            tensor.name,
            tensor.tensor_type.name,
            tuple(reversed(tensor.shape.tolist())),
            tensor.data_offset,
            tensor.n_bytes,
        )
        for tensor in expected.tensors
    ]
    assert [(t.name, t.type, t.shape, t.offset, t.num_bytes) for t in header.tensors] == tensors
    assert header.files == (str(path),)


def test_every_kind_of_field_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fields.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, (kind, value) in KINDS.items():
        writer.add_key_value(name, value, kind)
    writer.add_tensor("t", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_header(path).fields == {"general.architecture": "llama"} | {k: v for k, (_, v) in KINDS.items()}


def test_types_are_those_of_the_gguf_package_and_of_the_kernels() -> None:
    expected = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    known = {number: tuple(kind) for number, kind in gguf_types.TENSOR_TYPES.items()}
    del expected[9], known[9]  # Q8_1 is for activations: the package and ggml do not agree on its size.
    assert known == expected
    assert {name.lower() for name in gguf_types.WITH_KERNELS} == GGUF_BLOCKS.keys()
    assert len(gguf_types.FLOAT_TYPES) == len(FLOAT_DTYPES)
    for name in gguf_types.REQUANTISED_TYPES:
        features, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        numbers = gguf.quants.dequantize(np.zeros((1, size), np.uint8), gguf.GGMLQuantizationType[name])
        assert numbers.shape == (1, features)


def split(path: Path, folder: Path) -> list[Path]:
    """The file in three parts as `llama-gguf-split` writes them: the first has the fields, and here no tensor."""
    whole = gguf.GGUFReader(path)
    names = [folder / f"tiny-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    halves = [[], whole.tensors[:5], whole.tensors[5:]]
    for number, (name, tensors) in enumerate(zip(names, halves, strict=True)):
        writer = gguf.GGUFWriter(name, "llama")
        for field in whole.fields.values() if number == 0 else ():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), field.types[0], kind)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", len(whole.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return names


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(write_tiny_model(tmp_path / "tiny"), path)
    return split(path, tmp_path)


def test_a_model_in_parts_is_the_whole_one(tmp_path: Path, parts: list[Path]) -> None:
    whole, content = read_gguf(tmp_path / "tiny.gguf", "")
    for part in parts:
        checkpoint, tokenizer = read_gguf(part, "")
        assert (checkpoint.spec, tokenizer) == (whole.spec, content)
        assert checkpoint.files == tuple(map(str, parts))
        assert checkpoint.fingerprint == whole.fingerprint
    reader, expected = (weight_reader(found, TensorTable(found)) for found in (checkpoint, whole))
    for entry in whole.tensors:
        if len(entry.shape) == 2:
            shape = (entry.shape[0], entry.shape[1])
            np.testing.assert_array_equal(
                reader.rows(entry.name, shape).numbers(), expected.rows(entry.name, shape).numbers()
            )


def test_a_part_that_is_missing_or_another_one_is_told(parts: list[Path]) -> None:
    content = parts[2].read_bytes()
    parts[2].unlink()
    with pytest.raises(ConfigError, match=r"is one of 3 parts, of which tiny-00003-of-00003\.gguf are not beside it"):
        read_header(parts[0])
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(ConfigError, match=r"says that it is part 1 of a model, not 2"):
        read_header(parts[0])
    parts[2].write_bytes(content.replace(b"split.tensors.count", b"split.tensors.cound"))
    assert read_header(parts[0]).tensors
    first = parts[0].read_bytes()
    place = first.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
    parts[0].write_bytes(first[:place] + (7).to_bytes(4, "little") + first[place + 4 :])
    with pytest.raises(ConfigError, match="tensors, and should have 7"):
        read_header(parts[1])


def test_names_of_parts() -> None:
    assert part_names("a/m-00002-of-00002.gguf") == ["a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"]
    assert part_names("m.gguf") == ["m.gguf"]


def _moved(content: bytes, name: bytes, offset: int) -> bytes:
    """A file in which a tensor of one dimension begins elsewhere."""
    at = content.index(name) + len(name) + 4 + 8 + 4
    return content[:at] + offset.to_bytes(8, "little") + content[at + 8 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "cannot mmap an empty file"),
        (lambda content: b"GGML" + content[4:], "does not begin with GGUF"),
        (lambda content: b"GGUF" + (1).to_bytes(4, "little") + content[8:], "its version is 1"),
        (lambda content: content[:16] + b"\xff" * 8 + content[24:], "has 18446744073709551615 elements"),
        (lambda content: content[:-1000], r"tensor '.*' ends at byte"),
        (lambda content: _moved(content, b"output_norm.weight", 0), "overlap"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, damage: Any, message: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(write_tiny_model(tmp_path / "tiny"), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=message):
        read_header(path)
