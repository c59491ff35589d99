"""Recognises the pointers that a clone without Git LFS has in place of large files. Reads no file.

Format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from pathlib import Path

from pyllm.errors import ConfigError

_BEGINNING = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(path: Path, content: bytes) -> None:
    """Refuse a file whose content, or its beginning, is that of a pointer.

    Raises:
        ConfigError: it is; the text has the command that gets the file.
    """
    if content.startswith(_BEGINNING):
        raise ConfigError(f"{path} is a Git LFS pointer, not the file: run `git lfs pull` in {path.parent}")
