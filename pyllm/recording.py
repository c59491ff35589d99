"""The file with all inputs of a scheduler or a placement, for `pyllm replay`. Does not know its contents.

A thread writes, so that a slow disk does not stop the step loop until `MAX_WAITING` parts are queued.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from pyllm.errors import ConfigError

PART_BYTES = 1 << 20  # gathered before an automatic `flush`
MAX_WAITING = 16

logger = logging.getLogger(__name__)


class Recording:
    """A recording to the new file `path`, which is never overwritten; `take` returns the new bytes since its last call.

    After a failed write all further parts are dropped, with one error in the log: a full disk does not end the engine.

    Raises:
        ConfigError: the file exists, or cannot be made.
    """

    def __init__(self, path: Path, take: Callable[[], bytes]) -> None:
        check_recording_path(path)
        try:
            # It contains prompts, so only its owner may read it.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"recording: cannot make {path}: {error.strerror}") from error
        self._path = path
        self._take = take
        self.num_gathered = 0  # bytes that are not queued for the file yet
        self._parts: list[bytes] = []
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
        self._thread.start()

    def gather(self) -> None:
        """Take the new bytes; call it after every input, so that little is kept in memory."""
        part = self._take()
        if part:
            self._parts.append(part)
            self.num_gathered += len(part)
            if self.num_gathered >= PART_BYTES:
                self.flush()

    def flush(self) -> None:
        """Queue all gathered bytes for writing."""
        if self._parts:
            self._waiting.put(b"".join(self._parts))
            self._parts.clear()
            self.num_gathered = 0

    def close(self) -> None:
        """Write the rest, and wait for it; may be called twice."""
        if self._thread.is_alive():
            self.gather()
            self.flush()
            self._waiting.put(None)
            self._thread.join()

    def _write(self) -> None:
        failed = False
        while (part := self._waiting.get()) is not None:
            try:
                if not failed:
                    _write_all(self._file, part)
            except OSError as error:
                failed = True
                logger.error("the recording %s ends here: %s", self._path, error.strerror)
        os.close(self._file)


def check_recording_path(path: Path) -> None:
    """Refuse a path where a file exists, or where none can be made.

    Raises:
        ConfigError: with the reason.
    """
    if os.path.lexists(path):
        raise ConfigError(f"recording: {path} exists and is not overwritten; name a new file, or remove it")
    if not path.parent.is_dir():
        raise ConfigError(f"recording: there is no folder {path.parent}; make it, or name another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"recording: no file may be made in {path.parent}; name another one")


def _write_all(file: int, part: bytes) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(file, rest) :]
