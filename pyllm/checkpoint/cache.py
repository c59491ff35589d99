"""Caches slow results about a model's files in the user's cache folder, keyed by the files' identities.

These are the parsed header and tokenizer of each GGUF file, and the digest of all weights.

A damaged or outdated entry is rebuilt silently. Does not know how a GGUF is read.
"""

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path

import msgspec

from pyllm import families
from pyllm.checkpoint.gguf_header import part_names
from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import ConfigError

_WEIGHTS_DIGEST_BYTES = 32
_DIGESTED_BYTES = 64 << 20  # bytes that one thread digests at a time


class CacheError(ConfigError):
    """The cache folder cannot be written."""


class _Entry(msgspec.Struct, frozen=True):
    identity: str  # of the GGUF file and of the code that parsed it
    tokenizer_digest: str
    checkpoint: Checkpoint


def cached_gguf(path: Path, folder: Path) -> Checkpoint:
    """The checkpoint in a GGUF file, parsed now or taken from the cache in `folder`.

    Raises:
        ConfigError: the file cannot be used (see `read_gguf`).
        CacheError: the folder cannot be written.
    """
    key = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
    entry_path, tokenizer_path = folder / f"{key}.checkpoint", folder / f"{key}.tokenizer.json"
    identity = _identity(path)
    entry = _read_entry(entry_path)
    if entry is not None and entry.identity == identity and entry.tokenizer_digest == _file_digest(tokenizer_path):
        return entry.checkpoint

    from pyllm.checkpoint.gguf import read_gguf  # Workers, which digest weights here, read none.

    checkpoint, tokenizer_json = read_gguf(path, str(tokenizer_path))
    entry = _Entry(identity, _digest(tokenizer_json), checkpoint)
    write_file(tokenizer_path, tokenizer_json)
    write_file(entry_path, msgspec.msgpack.encode(entry))
    return checkpoint


def forget_gguf(path: Path, folder: Path) -> None:
    """Remove the entry of `cached_gguf` for a file, if there is one."""
    key = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
    for name in (f"{key}.checkpoint", f"{key}.tokenizer.json"):
        (folder / name).unlink(missing_ok=True)


def weights_digest(files: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """64 hexadecimal digits: a digest of all bytes of a model's files, which the cache keeps if it can be written.

    Raises:
        OSError: a file cannot be read.
    """
    identities = [file_identity(file) for file in files]
    name = f"{_digest(repr((list(files), identities)).encode())}.weights"
    with suppress(CacheError, OSError, ValueError):
        kept = (cache_folder(environment) / name).read_text()
        if len(bytes.fromhex(kept)) == _WEIGHTS_DIGEST_BYTES:
            return kept
    whole = hashlib.blake2b(digest_size=_WEIGHTS_DIGEST_BYTES)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for file in files:
            with Path(file).open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
                starts = range(0, len(content), _DIGESTED_BYTES)
                for part in threads.map(partial(_part_digest, content), starts):
                    whole.update(part)
            whole.update(b"end of file")
    digest = whole.hexdigest()
    with suppress(CacheError):
        write_file(cache_folder(environment) / name, digest.encode())
    return digest


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/pyllm` or `~/.cache/pyllm`, created if missing, readable by its owner alone.

    Raises:
        CacheError: it cannot be created.
    """
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base).absolute() / "pyllm"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise CacheError(f"cannot use the cache folder {folder}: {error}; set XDG_CACHE_HOME to another") from error
    return folder


def temporary_folder() -> Path:
    """A substitute for the cache folder, removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="pyllm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def file_identity(path: Path | str) -> tuple[int, ...]:
    """Inode, size, mtime and ctime: they change when a file is written or replaced, even with the same size and mtime.

    Raises:
        OSError: there is no such file.
    """
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _identity(path: Path) -> str:
    from importlib.metadata import entry_points  # Workers, which digest weights here, need neither.

    from pyllm.families.registry import GROUP

    digest = hashlib.blake2b(digest_size=16)
    for part in (path.with_name(name) for name in part_names(path.name)):
        # The reader reports a missing part, with a better message.
        digest.update(repr((str(part), file_identity(part) if part.exists() else None)).encode())
    # The identity covers the code that parses: editing a reader or a family makes entries outdated.
    for code in (Path(__file__).parent, Path(families.__file__).parent):
        for module in sorted(code.rglob("*.py")):
            digest.update(module.read_bytes())
    for entry in sorted(entry_points(group=GROUP)):
        digest.update(repr((entry.name, entry.value, entry.dist and entry.dist.version)).encode())
    return digest.hexdigest()


def _read_entry(path: Path) -> _Entry | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=_Entry)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _part_digest(content: mmap, start: int) -> bytes:
    with memoryview(content) as whole, whole[start : start + _DIGESTED_BYTES] as part:
        return hashlib.blake2b(part).digest()


def _file_digest(path: Path) -> str:
    try:
        return _digest(path.read_bytes())
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a concurrent reader sees the old content or the new.

    Raises:
        CacheError: it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
            try:
                file.write(content)
                file.close()
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise CacheError(f"cannot write {path}: {error}; set XDG_CACHE_HOME to another folder") from error
