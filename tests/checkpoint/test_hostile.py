"""A thousand damaged headers: each is read, or refused with a reason; none ends in another error or takes long."""

import json
import random
from pathlib import Path

import pytest

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


@pytest.mark.timeout(300)
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


@pytest.mark.timeout(300)
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


@pytest.mark.parametrize("value", [0, -1, 1 << 40, 1.5, "many", [4], {"a": 1}, True, 1e400])
def test_a_field_of_any_kind_is_refused_by_its_name(tmp_path: Path, value: object) -> None:
    folder = Path(write_tiny_model(tmp_path))
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    for name in (*names, "intermediate_size", "max_position_embeddings"):
        (folder / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(ConfigError, match=f"{name} is|damaged"):
            read_huggingface(folder)
