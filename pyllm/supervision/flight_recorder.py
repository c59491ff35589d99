"""The flight recorder: one folder of plain files for each crash, bounded in number and size, readable by its owner
only.

Knows no crashes: its callers make the parts, and leave prompts and secrets out.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from pyllm.config.option_reading import SECRETS
from pyllm.errors import ConfigError

# Records to keep, and the greatest size of one in bytes.
KEEP = 16
MAX_BYTES = 4 << 20
MAX_NAME = 80  # characters of a file's name

# The name of a record's folder, with a dot before it while it is being written. Nothing else is ever removed.
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_RECORD = re.compile(r"\.?\d{8}T\d{6}\.\d{6}Z-")
# Secret fields of the configuration (of a KV connector only its own settings), and fields that are only long.
SECRET_FIELDS = frozenset({"sha256", "secret", "rank_secret", "private_key", "kv_connector_extra_config"}) | (
    SECRETS - {"kv_transfer_config"}
)
_LONG_FIELDS = frozenset({"tensors", "certificate", "ca_certificates"})

logger = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class CrashRecord(msgspec.Struct, frozen=True):
    """A record: the name of its folder, its time (ISO 8601, UTC), its subject, and the size in bytes of each file."""

    folder: str
    time: str
    name: str
    files: dict[str, int]


def list_records(folder: Path) -> list[CrashRecord]:
    """The records in a folder, latest first; none if there is no such folder."""
    records = []
    for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []:
        if _RECORD.match(path.name) and not path.name.startswith("."):
            stamp, _, rest = path.name.partition("-")
            with contextlib.suppress(OSError):  # Another process may be removing it.
                files = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
                time = datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC)
                records.append(CrashRecord(path.name, time.isoformat(), rest.rpartition("-")[0], files))
    return records


class FlightRecorder:
    """Writes records into `folder`; several processes may use the same one. The newest `keep` records stay.

    `folder` is made at the first record. `max_bytes` bounds the total size of a record's files. `clock` returns UTC.
    """

    def __init__(
        self, folder: Path, keep: int = KEEP, max_bytes: int = MAX_BYTES, clock: Callable[[], datetime] = _utc_now
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._max_bytes = max_bytes
        self._clock = clock

    def record(self, name: str, parts: Mapping[str, bytes]) -> Path | None:
        """Write the parts as files, all or none; returns their folder, `<UTC time>-<name>-<random letters>`.

        Parts that are too large keep their end, after a line that says so; small ones are whole. Never raises: a
        failure to write is logged as a warning, and None is returned.
        """
        try:
            return self._write(name, parts)
        except Exception as error:  # noqa: BLE001 - it is called during a recovery, which must go on
            logger.warning("nothing was recorded of %s in %s: %s", name, self._folder, error)
            return None

    def _write(self, name: str, parts: Mapping[str, bytes]) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = self._clock().strftime(_STAMP)
        # The folder is private. Its last letters are random, so its name without the dot is free, too.
        hidden = Path(tempfile.mkdtemp(prefix=f".{stamp}-{_file_name(name)}-", dir=self._folder))
        try:
            for file_name, content in zip(_file_names(parts), self._cut(parts.values()), strict=True):
                with open(hidden / file_name, "xb", opener=_open_private) as file:
                    file.write(content)
            path = hidden.rename(self._folder / hidden.name.removeprefix("."))
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        self._remove_oldest(path.name)
        return path

    def _cut(self, contents: Iterable[bytes]) -> list[bytes]:
        """The contents, cut to `max_bytes` in total: from the smallest on, each gets an equal share of the rest."""
        cut = list(contents)
        room = self._max_bytes
        smallest_first = sorted(range(len(cut)), key=lambda index: len(cut[index]))
        for num_cut, index in enumerate(smallest_first):
            cut[index] = _tail(cut[index], room // (len(cut) - num_cut))
            room -= len(cut[index])
        return cut

    def _remove_oldest(self, kept: str) -> None:
        """Remove the oldest records, and older half-written ones of killed processes. Others may do so concurrently."""
        with os.scandir(self._folder) as entries:
            folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            names = sorted(name for name in folders if _RECORD.match(name) and name != kept)
        records = [name for name in names if not name.startswith(".")]
        oldest = records[: max(0, len(records) + 1 - self._keep)]
        if oldest:
            newest_stamp = oldest[-1].partition("-")[0]
            oldest += [name for name in names if name.startswith(".") and name[1:] < newest_stamp]
        for name in oldest:
            shutil.rmtree(self._folder / name, ignore_errors=True)


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/pyllm/crashes`; without that variable in `~/.local/state`. The folder is not made."""
    base = environment.get("XDG_STATE_HOME")
    if not base:
        try:
            base = str(Path.home() / ".local" / "state")
        except RuntimeError:  # A user in a container may have no home: use the root folder, as a login does.
            base = "/.local/state"
    return Path(base).absolute() / "pyllm" / "crashes"


def resolve_folder(given: str) -> str:
    """The absolute path of the folder for records. A `given` folder is made, and tested by a write.

    Raises:
        ConfigError: the folder cannot be made or written to.
    """
    if not given:
        return str(default_folder())  # Without the setting, a failure is only a warning at the first record.
    folder = Path(given).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write to flight_recorder_dir {folder}: {error.strerror}; give another folder, or none"
        ) from None
    return str(folder)


def config_json(config: msgspec.Struct) -> bytes:
    """A configuration as a part of a record: without hashes of keys and credentials in URLs, with paths."""
    return msgspec.json.format(msgspec.json.encode(_public(msgspec.to_builtins(config))), indent=2)


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = SECRET_FIELDS | _LONG_FIELDS
        return {key: _public(inner) for key, inner in value.items() if key not in left_out}
    if isinstance(value, list | tuple):
        return [_public(inner) for inner in value]
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return re.sub(r"://[^/]*@", "://", re.sub(r"[?#].*", "", value, flags=re.DOTALL))
    return value


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _file_names(names: Iterable[str]) -> list[str]:
    """Safe and distinct names for files."""
    taken: list[str] = []
    for name in names:
        file_name = _file_name(name)
        while file_name in taken:
            file_name = f"{len(taken)}-{file_name}"
        taken.append(file_name)
    return taken


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:MAX_NAME] or "unnamed"


def _tail(content: bytes, limit: int) -> bytes:
    """The content; if longer than `limit` bytes, its end, after a line with its length."""
    if len(content) <= limit:
        return content
    note = f"[the end of {len(content)} bytes]\n".encode()[:limit]
    return note + content[len(content) - (limit - len(note)) :]
