"""Reads JSON files, as Python writes them, as structs. Knows no field."""

import json
from pathlib import Path
from typing import TypeVar

import msgspec

from pyllm.errors import ConfigError

_T = TypeVar("_T")


def read_json(path: Path, kind: type[_T], optional: bool = False) -> _T:
    """A JSON file as `kind`; its defaults if the file is optional and absent.

    Raises:
        ConfigError: the file is missing or damaged.
    """
    if optional and not path.is_file():
        return kind()
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no file")
        return _decoded(path.read_bytes(), kind)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the folder of a Hugging Face model") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def _decoded(content: bytes, kind: type[_T]) -> _T:
    """Decode JSON that may have Infinity and NaN: Python writes them, and only its own decoder accepts them."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError:
        if b"Infinity" not in content and b"NaN" not in content:
            raise
        try:
            document = json.loads(content.decode())
        except ValueError:
            document = None
        if document is None:
            raise
        return msgspec.convert(document, type=kind)
