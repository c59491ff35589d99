"""Addresses of cores, and the private folder of `ipc://` sockets."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from pyllm.errors import ConfigError

_MAX_PATH_BYTES = 107  # of a Unix socket's path, without the zero at its end
# Bytes for the folder's own name and the longest name in it: `/pyllm-12345678/worker-63-1023-999`.
_ROOM_FOR_NAMES = 38
_SHORT_FOLDER = Path("/tmp")  # noqa: S108  a folder with a random name is made in it


class SocketFolder:
    """A private folder (mode 0700) for `ipc://` sockets, held by a lock as long as this object lives.

    It is in XDG_RUNTIME_DIR, or in TMPDIR if that is not writable (`sudo` keeps another user's), or in /tmp if the path
    would be too long for sockets. Folders with a free lock were left by killed processes; making a new one removes
    them.

    Raises:
        ConfigError: no folder can be made.
    """

    def __init__(self) -> None:
        given = os.environ.get("XDG_RUNTIME_DIR", "")
        try:
            parent = _short(Path(given if os.access(given, os.W_OK | os.X_OK) else tempfile.gettempdir()))
            _sweep(parent)
            self.path, self._lock = _make(parent)
        except OSError as error:
            raise ConfigError(f"cannot make a folder for sockets: {error}; set TMPDIR or XDG_RUNTIME_DIR") from None

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder; may be called twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def is_core_address(text: str) -> bool:
    """Whether this ZeroMQ address is valid for a core; libzmq would map a port above 65535 to another one."""
    if (match := re.fullmatch(r"tcp://\S+:(\d{1,5}|\*)", text)) is not None:
        return match[1] == "*" or int(match[1]) <= 0xFFFF
    return text.startswith("ipc://") and text != "ipc://"


def check_core_address(address: str) -> None:
    """Refuse an address at which no core can be reached.

    Raises:
        ConfigError: it is neither ipc:// nor tcp:// with a port, or its path is too long.
    """
    if not is_core_address(address) or address.endswith(("*", ":0")):
        if address.startswith(("http://", "https://")):
            hint = "that is the address of a server, for clients of OpenAI's API; a core is started by `pyllm core`, at"
        else:
            path = address.removeprefix("ipc:").removeprefix("file://").removeprefix("unix://")
            hint = f"did you mean ipc://{path}? A core is at" if "/" in path and "://" not in path else "give"
        raise ConfigError(f"{address!r} is no address of a core: {hint} ipc://PATH or tcp://HOST:PORT")
    size = len(os.fsencode(address)) - len("ipc://")
    if address.startswith("ipc://") and size > _MAX_PATH_BYTES:
        raise ConfigError(f"the path of {address} has {size} bytes, and at most {_MAX_PATH_BYTES} work")


def _short(parent: Path) -> Path:
    """This folder, or /tmp if the paths of sockets in it would be too long for the kernel."""
    fits = len(os.fsencode(parent)) + _ROOM_FOR_NAMES <= _MAX_PATH_BYTES
    if fits or not parent.is_dir() or not os.access(_SHORT_FOLDER, os.W_OK | os.X_OK):
        return parent
    return _SHORT_FOLDER


def _make(parent: Path) -> tuple[str, int]:
    """A new folder, and a descriptor that holds its lock, which the kernel releases at any end of the process."""
    while True:
        folder = tempfile.mkdtemp(prefix="pyllm-", dir=parent)
        # Until it is locked, another process may remove it.
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = lock_file(os.path.join(folder, "lock"), os.O_CREAT)
            if os.path.exists(folder):
                return folder, lock
            os.close(lock)


def lock_file(file: str, flags: int = 0) -> int:
    """Open and lock a file. Raises BlockingIOError if another process has locked it."""
    descriptor = os.open(file, os.O_RDWR | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _sweep(parent: Path) -> None:
    for folder in parent.glob("pyllm-*"):
        # Errors: a new folder has no lock yet, another process removes the same folder, or it is another user's.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                lock = lock_file(f"{folder}/lock")
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
