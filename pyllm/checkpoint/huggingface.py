"""Reads a Hugging Face folder: config.json, safetensors headers, tokenizer files. Reads no weights and knows no GGUF.

Format of the headers: https://github.com/huggingface/safetensors#format
"""

import math
from pathlib import Path
from typing import Any

import msgspec

from pyllm.checkpoint.types import Checkpoint, TokenizerFiles, weights_dtype, weights_fingerprint
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.registry import find_family
from pyllm.families.tensors import FileTensor, map_tensors

_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# The format's own limit on a header.
_MAX_HEADER_BYTES = 100_000_000


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_huggingface(folder: Path) -> Checkpoint:
    """The checkpoint in a folder as `save_pretrained` writes it.

    Raises:
        ConfigError: a file is missing or damaged, or the model needs a feature that is not supported.
    """
    config = _read_json(folder / "config.json")
    files, tensors = _read_tensors(folder)
    architecture = (config.get("architectures") or [None])[0]
    fields = Config(config)
    fields.refuse_unless(quantization_config=None)
    family = find_family(str(architecture))
    spec = msgspec.structs.replace(family.read(fields), dtype=weights_dtype(tensors))
    entries, skipped = map_tensors(spec, family.tensors, tensors)
    return Checkpoint(
        name=folder.name,
        format="safetensors",
        files=files,
        spec=spec,
        tensors=entries,
        tokenizer=_tokenizer(folder, config),
        fingerprint=weights_fingerprint(files, [entry.source for entry in entries]),
        skipped=skipped,
    )


def _read_tensors(folder: Path) -> tuple[tuple[str, ...], tuple[FileTensor, ...]]:
    index = folder / "model.safetensors.index.json"
    weight_map = _read_json(index).get("weight_map", {}) if index.is_file() else {"": "model.safetensors"}
    paths = [folder / name for name in sorted(set(weight_map.values()))]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise ConfigError(f"{folder} has no {path.name}; weights are read from safetensors files only")
    entries = [entry for number, path in enumerate(paths) for entry in _read_header(path, number)]
    return tuple(str(path) for path in paths), tuple(entries)


def _read_header(path: Path, number: int) -> list[FileTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ConfigError(f"{path} is damaged: it is {size} bytes long and announces a header of {length}")
        header = file.read(length)
    start = 8 + length
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(tensor, type=_Tensor) for name, tensor in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: its header does not decode: {error}") from error
    entries = []
    for name, tensor in tensors.items():
        begin, end = tensor.data_offsets
        if tensor.dtype not in _ELEMENT_BYTES:
            raise ConfigError(f"tensor {name!r} has type {tensor.dtype}, which is not supported")
        if (
            not 0 <= begin <= end <= size - start
            or end - begin != math.prod(tensor.shape) * _ELEMENT_BYTES[tensor.dtype]
        ):
            raise ConfigError(
                f"{path} is damaged: {name} {tensor.shape} lies at bytes {begin} to {end} of {size - start}"
            )
        entries.append(FileTensor(name, tensor.dtype, tensor.shape, number, start + begin, end - begin))
    return entries


def _tokenizer(folder: Path, config: dict[str, Any]) -> TokenizerFiles:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no tokenizer.json; transformers' `save_pretrained` writes one")
    document = _read_json(path)
    options = _read_json(folder / "tokenizer_config.json", optional=True)
    generation = _read_json(folder / "generation_config.json", optional=True)
    bos_token, eos_token = _token(options.get("bos_token")), _token(options.get("eos_token"))
    eos_ids = generation.get("eos_token_id", config.get("eos_token_id"))
    eos_token_ids = set(eos_ids if isinstance(eos_ids, list) else [] if eos_ids is None else [eos_ids])
    for token in document.get("added_tokens", []):
        if eos_token and token.get("content") == eos_token:
            eos_token_ids.add(token["id"])
    return TokenizerFiles(
        path=str(path),
        chat_template=_chat_template(folder, options),
        bos_token=bos_token,
        eos_token=eos_token,
        eos_token_ids=tuple(sorted(eos_token_ids)),
    )


def _chat_template(folder: Path, options: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = options.get("chat_template")
    if isinstance(template, list):  # Several named ones: the one that transformers takes, too.
        return next((item["template"] for item in template if item.get("name") == "default"), None)
    return template


def _token(value: str | dict[str, Any] | None) -> str:
    return value.get("content", "") if isinstance(value, dict) else value or ""


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the folder of a Hugging Face model") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
