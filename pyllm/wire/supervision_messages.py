"""What a child process tells its parent, and what of that outlives the child. Knows no sockets and no behaviour.

Structs are as those of `wire/messages.py`; heartbeats are there, since cores and clients send them, too.
"""

from typing import Any

from pyllm.wire.messages import Heartbeat, Message, Restarts

MAX_ENDED = 1000  # ended requests whose reports are kept


class Failed(Message, frozen=True):
    """The last words of a process: the stage it was in, what went wrong, and whether a setting is at fault."""

    stage: str
    message: str
    is_setting: bool = False


class Started(Message, frozen=True):
    """A child process tells its parent that it is ready, and the address it serves."""

    address: str = ""


class ReloadAsked(Message, frozen=True):
    """An API process was asked to read keys and certificates again: its parent is to do so, and to tell all of them."""


class CoreEntry(Message, frozen=True):
    """A core that a server uses. One that is leaving has `leave_timeout` seconds to finish what it runs."""

    index: int
    address: str
    max_num_seqs: int
    is_leaving: bool = False
    leave_timeout: float = 0.0


class CoreList(Message, frozen=True):
    """The cores of a server. `version` rises with each change; no index is used twice.

    `fingerprint` is the one that each of several cores must have; empty until one has answered, and while one is all.
    """

    version: int = 0
    cores: tuple[CoreEntry, ...] = ()
    next_index: int = 0
    fingerprint: str = ""

    @property
    def staying(self) -> list[CoreEntry]:
        """Those that do not leave."""
        return [core for core in self.cores if not core.is_leaving]


class Kept(Message, frozen=True):
    """What outlives a process: it tells its parent, which tells the next one at its start. None: no change.

    Of a core: `settings` are all that clients have changed so far, by name. `ended` are requests that have ended since
    the last such message, oldest first, as `Scheduler.requests` has them: the clock of their times is that of the
    machine. `workers` are the ranks that were restarted. Of the shared state: `cores`.
    """

    settings: dict[str, Any] | None = None
    ended: tuple[dict[str, Any], ...] = ()
    workers: tuple[Restarts, ...] | None = None
    cores: CoreList | None = None


ChildMessage = Heartbeat | Started | Failed | Kept | ReloadAsked
