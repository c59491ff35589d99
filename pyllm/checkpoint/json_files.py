"""Reads JSON files, as Python writes them, as structs, and recognises Git LFS pointers. Knows no field."""

import json
from pathlib import Path
from typing import TypeVar

import msgspec

from pyllm.errors import ConfigError

_T = TypeVar("_T")

# A clone without Git LFS has pointers in place of large files: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_POINTER = b"version https://git-lfs.github.com/spec/"


def read_json(path: Path, kind: type[_T], optional: bool = False) -> _T:
    """A JSON file as `kind`; its defaults if the file is optional and absent.

    Raises:
        ConfigError: the file is missing, damaged or a Git LFS pointer.
    """
    if "\0" in str(path):
        raise ConfigError(f"cannot read {path}: a path has no NUL")
    if optional and not path.is_file():
        return kind()
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no file")
        content = path.read_bytes()
        refuse_pointer(path, content)
        return _decoded(content, kind)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the folder of a Hugging Face model") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def refuse_pointer(path: Path, content: bytes) -> None:
    """Refuse a file whose content, or its beginning, is that of a Git LFS pointer.

    Raises:
        ConfigError: it is; the text has the command that gets the file.
    """
    if content.startswith(_POINTER):
        raise ConfigError(f"{path} is a Git LFS pointer, not the file: run `git lfs pull` in {path.parent}")


def _decoded(content: bytes, kind: type[_T]) -> _T:
    """Decode JSON by Python's rules where msgspec's fail: Infinity, NaN, 1e400 and halves of surrogate pairs.

    Such a half is no text that other code can encode, so it becomes a question mark.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError:
        try:
            text = json.dumps(json.loads(content.decode()), ensure_ascii=False)
            document = json.loads(text.encode(errors="replace"))
        except ValueError:
            document = None
        if document is None:
            raise
        return msgspec.convert(document, type=kind, str_keys=True)
