"""Writes folders with a vocabulary and no tokenizer.json, from the recorded cases."""

import base64
import json
from pathlib import Path
from typing import Any

from tests.checkpoint.vocabularies.wordpiece_vocabulary import wordpiece_tokens

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("folder_tokenizer_cases.json").read_text())
GGUF_CASES: dict[str, Any] = json.loads(Path(__file__).with_name("gguf_tokenizer_cases.json").read_text())


def write_case(folder: Path, case: dict[str, Any]) -> Path:
    """The files of one of `CASES`."""
    (folder / case["file"]).write_bytes(base64.b64decode(case["content"]))
    return _with_configs(folder, case["model_type"], case["tokenizer_config"])


def write_byte_level(folder: Path, model_type: str, config: dict[str, Any]) -> Path:
    """A vocab.json with its merges.txt."""
    vocabulary = GGUF_CASES["vocabularies"]["gpt2"]
    ids = {token: index for index, token in enumerate(vocabulary["tokens"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join(("#version: 0.2", *vocabulary["merges"], "")))
    return _with_configs(folder, model_type, config)


def write_words(folder: Path, model_type: str, config: dict[str, Any]) -> Path:
    """A vocab.txt."""
    (folder / "vocab.txt").write_text("\n".join([*wordpiece_tokens(GGUF_CASES["texts"]), ""]))
    return _with_configs(folder, model_type, config)


def _with_configs(folder: Path, model_type: str, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
