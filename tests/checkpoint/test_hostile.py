"""A thousand damaged headers: each is read, or refused with a reason; none ends in another error or takes long."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from pyllm.checkpoint.gguf import read_gguf
from pyllm.checkpoint.huggingface import read_huggingface
from pyllm.errors import ConfigError
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model

CASES = 500  # of each format


def damaged(content: bytes, header: int, generator: random.Random) -> bytes:
    """The content with some bytes of its header changed, removed, or repeated, or cut off behind them."""
    place = generator.randrange(header)
    match generator.randrange(4):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + content[place + generator.randrange(1, 9) :]
        case 2:
            return content[:place] + content[max(0, place - 8) : place] + content[place:]
        case _:
            changed = bytearray(content)
            for _ in range(generator.randrange(1, 5)):
                changed[generator.randrange(header)] = generator.choice(
                    [0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)]
                )
            return bytes(changed)


def test_damaged_gguf_headers(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "tiny")
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    content = path.read_bytes()
    header = content.index(b"output_norm.weight") + 200  # behind the fields and most of the tensor table
    generator, refused = random.Random(0), 0
    for _ in range(CASES):
        path.write_bytes(damaged(content, header, generator))
        try:
            read_gguf(path, "")
        except ConfigError:
            refused += 1
    assert refused > CASES // 4


def test_damaged_safetensors_headers_and_configurations(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    files = [folder / "model.safetensors", folder / "config.json", folder / "tokenizer_config.json"]
    contents = {file: file.read_bytes() for file in files}
    headers = {file: len(content) for file, content in contents.items()}
    headers[files[0]] = int.from_bytes(contents[files[0]][:8], "little") + 8
    generator, refused = random.Random(1), 0
    for number in range(CASES):
        file = files[min(number % 4, 2)] if number % 4 else files[0]
        file.write_bytes(damaged(contents[file], headers[file], generator))
        try:
            read_huggingface(folder)
        except ConfigError:
            refused += 1
        file.write_bytes(contents[file])
    assert refused > CASES // 4


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    few = {token: index for token, index in vocabulary.items() if index < 100}
    many = vocabulary | {f"more {index}": len(vocabulary) + index for index in range(200)}
    for vocabulary in (few, many):
        document["model"]["vocab"] = vocabulary
        (folder / "tokenizer.json").write_text(json.dumps(document))
        with pytest.raises(ConfigError, match=rf"has {len(vocabulary)} tokens and the model's embedding \d+ rows"):
            read_huggingface(folder)


def test_tensors_that_share_bytes_or_leave_some_over(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    up = "model.layers.0.mlp.up_proj.weight"
    header[up]["data_offsets"] = header["model.layers.0.mlp.gate_proj.weight"]["data_offsets"]
    text = json.dumps(header).encode()
    for damaged_file in (len(text).to_bytes(8, "little") + text + content[8 + length :], content + b"more"):
        path.write_bytes(damaged_file)
        with pytest.raises(ConfigError, match=r"model\.safetensors is damaged: (its tensors have|.* begins at byte)"):
            read_huggingface(folder)


def test_what_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    deep = b'{"a":' * 200_000
    (folder / "model.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(ConfigError, match="its header does not decode"):
        read_huggingface(folder)
    (folder / "config.json").write_bytes(deep)
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        read_huggingface(folder)


def test_arrays_of_arrays_are_refused_at_once(tmp_path: Path) -> None:
    source, path = write_tiny_model(tmp_path / "tiny"), tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    content = path.read_bytes()
    place = content.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 4
    assert content[place] == 8  # strings
    path.write_bytes(content[:place] + b"\x09" + content[place + 1 :])
    with pytest.raises(ConfigError, match="a field is an array of arrays"):
        read_gguf(path, "")


def test_arrays_longer_than_their_file_are_refused_at_once(tmp_path: Path) -> None:
    source, path = write_tiny_model(tmp_path / "tiny"), tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    content = path.read_bytes()
    place = content.index(b"tokenizer.ggml.token_type") + len(b"tokenizer.ggml.token_type") + 8
    path.write_bytes(content[:place] + (1 << 40).to_bytes(8, "little") + content[place + 8 :])
    with pytest.raises(ConfigError, match="a field has 1099511627776 elements in a file of"):
        read_gguf(path, "")


FACTORS = {"original_max_position_embeddings": 1, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e300}}, "stretches the context to"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0} | FACTORS}, "RoPE cannot be computed with"),
        ({"layer_types": [{"a": 1}], "architectures": ["Qwen3ForCausalLM"]}, "layer_types"),
    ],
)
def test_numbers_that_cannot_be_computed_with(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    folder = Path(write_tiny_model(tmp_path, layers=1))
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(ConfigError, match=text):
        read_huggingface(folder)


def test_a_gguf_file_has_a_token_for_each_row_of_its_embedding(tmp_path: Path) -> None:
    source, path = write_tiny_model(tmp_path / "tiny"), tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    tokens = list(GGUFReader(path).fields["tokenizer.ggml.tokens"].contents())[:-1]
    write_tiny_gguf(source, path, fields={"tokenizer.ggml.tokens": tokens})
    with pytest.raises(ConfigError, match=rf"has {len(tokens)} tokens and an embedding of {len(tokens) + 1} rows"):
        read_gguf(path, "")


@pytest.mark.parametrize("value", [0, -1, 1 << 40, 1.5, "many", [4], {"a": 1}, True, 1e400])
def test_a_field_of_any_kind_is_refused_by_its_name(tmp_path: Path, value: object) -> None:
    folder = Path(write_tiny_model(tmp_path))
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    for name in (*names, "intermediate_size", "max_position_embeddings"):
        (folder / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(ConfigError, match=f"{name} is|damaged"):
            read_huggingface(folder)


ODD_VALUES = (None, True, 0, -3, 2.5, "", "x", [], [[]], [None], {}, {"a": {}}, {"content": 7}, 1 << 70)


def test_values_of_other_kinds_in_every_json_file(tmp_path: Path) -> None:
    """Anywhere in a document a value becomes one of another kind."""
    folder = Path(write_tiny_model(tmp_path / "tiny"))
    names = {"": "model.safetensors"} | dict.fromkeys(["model.norm.weight"], "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    files = [file for file in folder.glob("*.json") if file.name != "tokenizer.json"]
    documents = {file: json.loads(file.read_text()) for file in files}
    generator, refused = random.Random(2), 0
    for number in range(CASES):
        file = files[number % len(files)]
        file.write_text(json.dumps(with_another_value(documents[file], generator)))
        try:
            read_huggingface(folder)
        except ConfigError:
            refused += 1
        file.write_text(json.dumps(documents[file]))
    assert refused > CASES // 4


def with_another_value(document: Any, generator: random.Random) -> Any:
    """A copy with one value replaced, at any depth."""
    if isinstance(document, dict) and document and generator.random() < 0.8:
        name = generator.choice(sorted(document))
        return document | {name: with_another_value(document[name], generator)}
    if isinstance(document, list) and document and generator.random() < 0.5:
        return [with_another_value(document[0], generator), *document[1:]]
    return generator.choice(ODD_VALUES)


def test_values_of_other_kinds_in_gguf_fields(tmp_path: Path) -> None:
    source, path = write_tiny_model(tmp_path / "tiny", layers=1), tmp_path / "tiny.gguf"
    write_tiny_gguf(source, path)
    names = [name for name in GGUFReader(path).fields if name.startswith(("llama.", "tokenizer.", "general.arch"))]
    optional = ("split.count", "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.expert_count")
    refused = 0
    for name in (*names, *optional, "tokenizer.chat_template", "llama.attention.sliding_window_pattern"):
        for value in ("x", 3, 1.5, True, ["a"], [1, 2], 1 << 31):
            write_tiny_gguf(source, path, fields={name: value})
            try:
                read_gguf(path, "")
            except ConfigError:
                refused += 1
    assert refused > 4 * len(names)
