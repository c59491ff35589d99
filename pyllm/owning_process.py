"""The process that made an engine, and that alone may use it. Knows no engine."""

import os
import weakref
from collections.abc import Callable
from typing import Any

from pyllm.errors import EngineDeadError


class OwningProcess:
    """Remembers the process that makes it. `engine` is the name of the engine's class, for errors.

    Sockets, threads and event loops do not work in a fork: a wait for them there never ends.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this is the owning process, and no fork of it."""
        return os.getpid() == self._pid

    def when_dropped(self, engine: object, end: Callable[..., object], *held: object) -> "weakref.finalize[..., Any]":
        """Call `end(*held)` once nothing references the engine; not in a fork, and not at the end of the process."""
        finalizer = weakref.finalize(engine, self._end, end, held)
        finalizer.atexit = False  # The end of this process also ends the engine's processes.
        return finalizer

    def check(self) -> None:
        """Raise `EngineDeadError` in a forked process."""
        if not self.is_this:
            raise EngineDeadError(
                f"this {self._engine} belongs to process {self._pid}, and this is process {os.getpid()}, a fork of it: "
                f"make the {self._engine} after the fork, in the process that uses it"
            )

    def _end(self, end: Callable[..., object], held: tuple[object, ...]) -> None:
        if self.is_this:
            end(*held)
