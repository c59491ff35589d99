"""The flight recorder: one folder of plain files for each crash, bounded in number and size, readable by its owner
only.

Does not know what a crash is: its callers make the parts, and leave prompts and secrets out.
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

# Records that are kept, and bytes that the files of one may have together.
KEEP = 16
MAX_BYTES = 4 << 20
MAX_NAME = 80  # characters of a file's name

# How a record's folder is named, with a dot before it while it is being written. Nothing else is ever removed.
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_RECORD = re.compile(r"\.?\d{8}T\d{6}\.\d{6}Z-")
# Fields of the configuration that are secret, of a KV connector its own settings alone; and those that are only long.
SECRET_FIELDS = frozenset({"sha256", "secret", "private_key", "kv_connector_extra_config"}) | (
    SECRETS - {"kv_transfer_config"}
)
_LONG_FIELDS = frozenset({"tensors", "certificate", "ca_certificates"})

logger = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class CrashRecord(msgspec.Struct, frozen=True):
    """A record that was kept: its folder's name, when it was made (ISO 8601, UTC), of what, and bytes by file."""

    folder: str
    time: str
    name: str
    files: dict[str, int]


def list_records(folder: Path) -> list[CrashRecord]:
    """The records that are in a folder, latest first; none where it cannot be read."""
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

    `folder` is made at the first record. `max_bytes` bounds the files of one record together. `clock` gives UTC.
    """

    def __init__(
        self, folder: Path, keep: int = KEEP, max_bytes: int = MAX_BYTES, clock: Callable[[], datetime] = _utc_now
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._max_bytes = max_bytes
        self._clock = clock

    def record(self, name: str, parts: Mapping[str, bytes]) -> Path | None:
        """Write the parts as files, all or none of them; gives their folder, `<UTC time>-<name>-<random letters>`.

        Parts that are too large keep their end, after a line that says so; small ones are whole. Never raises: what
        cannot be written is a warning in the log, and gives None.
        """
        try:
            return self._write(name, parts)
        except Exception as error:  # noqa: BLE001 - it is called in the midst of a recovery, which must go on
            logger.warning("nothing was recorded of %s in %s: %s", name, self._folder, error)
            return None

    def _write(self, name: str, parts: Mapping[str, bytes]) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = self._clock().strftime(_STAMP)
        # Private, and nobody else's, as its last letters are random: so is then its name without the dot.
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
        """What is written of each: from the smallest on, each has its share of what is left."""
        cut = list(contents)
        room = self._max_bytes
        smallest_first = sorted(range(len(cut)), key=lambda index: len(cut[index]))
        for num_cut, index in enumerate(smallest_first):
            cut[index] = _tail(cut[index], room // (len(cut) - num_cut))
            room -= len(cut[index])
        return cut

    def _remove_oldest(self, kept: str) -> None:
        """Others may be removing the same. What a killed process left half written goes with records of its age."""
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
    """`$XDG_STATE_HOME/pyllm/crashes`, or that in `~/.local/state`. It is not made."""
    base = environment.get("XDG_STATE_HOME")
    if not base:
        try:
            base = str(Path.home() / ".local" / "state")
        except RuntimeError:  # A user without a home, as containers have them: the root stands in, as for a login.
            base = "/.local/state"
    return Path(base).absolute() / "pyllm" / "crashes"


def resolve_folder(given: str) -> str:
    """The absolute path of the folder for records. One that was given is made, and tried.

    Raises:
        ConfigError: it cannot be made or written to.
    """
    if not given:
        return str(default_folder())  # Who did not ask for records gets a warning at most, once there is one.
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
    """A configuration as a part of a record: without hashes of keys and without credentials in URLs; paths stay."""
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
    """Harmless names for files, no two of them the same."""
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
    """The end of what is longer than `limit` bytes, after a line that says how much it was."""
    if len(content) <= limit:
        return content
    note = f"[the end of {len(content)} bytes]\n".encode()[:limit]
    return note + content[len(content) - (limit - len(note)) :]
