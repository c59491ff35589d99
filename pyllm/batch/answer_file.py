"""The answers of a batch, one JSON object a line in OpenAI's format: read to resume a batch, and appended to.

An unfinished last line, as a killed process leaves one, is repaired. Knows no server, and of a request
only its `custom_id`.
"""

import fcntl
import os
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import msgspec

from pyllm.errors import ConfigError, PyllmError

# Every line begins so; another unfinished last line is not from a batch, and is left alone.
BEGINNING = b'{"id":"batch_req_'

_SYNC_INTERVAL = 1.0  # seconds between syncs to disk, at least
_LEAST_FAILURE = 400


class Response(msgspec.Struct, frozen=True):
    """A server's response; `body` is JSON."""

    status_code: int
    request_id: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file: a response, whatever its status, or an error, the reason for a missing response."""

    id: str = ""
    custom_id: str
    response: Response | None
    error: Any = None

    @property
    def is_failure(self) -> bool:
        """Whether the response has status 400 or above, or there is none."""
        return self.response is None or self.response.status_code >= _LEAST_FAILURE


class AnswerFile:
    """The file, locked and open until the `with` block ends.

    `answered` holds the custom_ids that have a line, `num_failed` counts the failures among them.

    Raises:
        ConfigError: the file cannot be written, another process writes to it, or it has a line that is no answer to
            these requests. The file is unchanged then.
    """

    def __init__(
        self,
        path: Path,
        custom_ids: Set[str],
        clock: Callable[[], float] = time.monotonic,
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.path = path
        self.answered: set[str] = set()
        self.num_failed = 0
        self._clock = clock
        self._sync = sync
        self._synced_at = clock()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._go_on(custom_ids)
            except BaseException:
                os.close(self._file)
                raise
        except BlockingIOError:
            raise ConfigError(f"another process writes answers to {path}: wait for it, or name another file") from None
        except OSError as error:
            raise ConfigError(f"cannot write answers to {path}: {error.strerror}") from None

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._sync(self._file)
        os.close(self._file)

    def append(self, answer: Answer) -> None:
        """Write a line. It is synced to disk with a later append, a second or more after the last sync, or at the end.

        Raises:
            PyllmError: the disk is full, or fails.
        """
        rest = memoryview(msgspec.json.encode(answer) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            if (now := self._clock()) - self._synced_at >= _SYNC_INTERVAL:
                self._synced_at = now
                self._sync(self._file)
        except OSError as error:
            raise PyllmError(
                f"cannot write to {self.path}: {error.strerror}; {len(self.answered)} requests have their answers, and "
                "the same command goes on from there"
            ) from None
        self._count(answer)

    def _go_on(self, custom_ids: Set[str]) -> None:
        """Read the lines of the file; complete or remove a last line without a line end."""
        size, tail = 0, b""
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    tail = line
                    break
                size += len(line)
                if line.strip():
                    self._note(line, number, custom_ids)
        if not tail:
            return
        if not (tail.startswith(BEGINNING) or BEGINNING.startswith(tail)) and tail.strip(b"\0"):
            raise ConfigError(f"{self.path} ends with a line that is no answer of a batch: name another file")
        # An object that is cut off does not decode, since it ends with its last character.
        try:
            self._note(tail, 0, custom_ids)
        except ConfigError:
            os.ftruncate(self._file, size)
        else:
            os.write(self._file, b"\n")

    def _note(self, line: bytes, number: int, custom_ids: Set[str]) -> None:
        where = f"line {number} of {self.path}"
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ConfigError(f"{where} is no answer of a batch: remove it, or name another file") from None
        if answer.custom_id not in custom_ids:
            raise ConfigError(
                f"{where} answers {answer.custom_id!r:.80}, and no request has that custom_id: name another file"
            )
        if answer.custom_id in self.answered:
            raise ConfigError(f"{where} answers {answer.custom_id!r:.80} again: remove one of the two lines")
        self._count(answer)

    def _count(self, answer: Answer) -> None:
        self.answered.add(answer.custom_id)
        self.num_failed += answer.is_failure
