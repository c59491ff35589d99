"""Messages from a child process to its parent, and the state that outlives the child. Knows no sockets, no behaviour.

Structs are like those of `wire/messages.py`, which has heartbeats, as cores and clients send them, too.
"""

from typing import Any

import msgspec

from pyllm.wire.messages import Adapter, Heartbeat, Message, Restarts

MAX_ENDED = 1000  # ended requests whose reports are kept


class Failed(Message, frozen=True):
    """The last message of a process that fails: its stage, the error, and whether a setting is at fault."""

    stage: str
    message: str
    is_setting: bool = False


class Started(Message, frozen=True):
    """Report that a child process is ready, and the address it serves."""

    address: str = ""


class ReloadAsked(Message, frozen=True):
    """Ask the parent to read keys and certificates again, and to send them to all API processes."""


class CoreEntry(Message, frozen=True):
    """A core that a server uses. If it `is_leaving`, its requests have `leave_timeout` seconds to finish."""

    index: int
    address: str
    max_num_seqs: int
    is_leaving: bool = False
    leave_timeout: float = 0.0


class CoreList(Message, frozen=True):
    """The cores of a server. `version` rises with each change; no index is used twice.

    `fingerprint` is required of each of several cores; empty until one has answered, and for a single core.
    """

    version: int = 0
    cores: tuple[CoreEntry, ...] = ()
    next_index: int = 0
    fingerprint: str = ""

    @property
    def staying(self) -> list[CoreEntry]:
        """The cores that are not leaving."""
        return [core for core in self.cores if not core.is_leaving]


class CatalogueChoices(Message, frozen=True):
    """The models of a catalogue that are to be loaded, in the order of their requests, and the shares of its aliases.

    Each has the number of its wish, which no other wish has, so that a model which was given up and is wanted again is
    not taken for one that stays. `aliases` are None where they are those of the start.
    """

    wanted: dict[str, int] = msgspec.field(default_factory=dict)
    aliases: dict[str, dict[str, float]] | None = None


class Kept(Message, frozen=True):
    """State that outlives a process: its parent keeps it for the next one. None: no change.

    From a core: `settings` are all settings that clients have changed so far, by name. `ended` are reports of requests
    that have ended since the last such message, oldest first, as in `Scheduler.requests`, with times by the machine's
    clock. `workers` are the ranks that were restarted; `adapters` are all that the core serves. From the shared state:
    `cores`. From the API process of a catalogue: `catalogue`.
    """

    settings: dict[str, Any] | None = None
    ended: tuple[dict[str, Any], ...] = ()
    workers: tuple[Restarts, ...] | None = None
    cores: CoreList | None = None
    adapters: tuple[Adapter, ...] | None = None
    catalogue: CatalogueChoices | None = None


ChildMessage = Heartbeat | Started | Failed | Kept | ReloadAsked
