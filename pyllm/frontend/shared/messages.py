"""Messages between API processes and their shared state: the values of its methods, and their envelopes."""

from typing import Any

from pyllm.config.api_keys import Allowance
from pyllm.wire.messages import Message

# A peer that is silent for this many of our own beats counts as dead. Beats, not seconds: a process that was stopped
# must not blame the others when it goes on.
MAX_SILENT_BEATS = 20


class Admission(Message, frozen=True):
    """A request that asks to be admitted. `ticket` is a number that its API process has not used before.

    Its budget is that of `account`. The core will compute `num_sequences` sequences for it.
    """

    ticket: int
    account: str = ""
    allowance: Allowance = Allowance()
    num_sequences: int = 1


class Remaining(Message, frozen=True):
    """The rest of a budget of `limit` a minute. It is full again in `reset` seconds."""

    limit: int
    remaining: int
    reset: float


class Granted(Message, frozen=True):
    """The request may go on. A budget without a limit is None; with `counts_tokens`, charge its prompt next."""

    requests: Remaining | None = None
    tokens: Remaining | None = None
    counts_tokens: bool = False


class Refused(Message, frozen=True):
    """The request may not go on, and nothing is held for it. `reason` is one of `REASONS`, or `LOST`.

    Retry after `retry_after` seconds; None means that the request can never be admitted.
    """

    reason: str
    text: str
    retry_after: float | None = None
    requests: Remaining | None = None
    tokens: Remaining | None = None


# The account's own limits, then those of the queue.
LIMIT_REASONS = ("requests", "tokens", "concurrent")
QUEUE_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")
REASONS = LIMIT_REASONS + QUEUE_REASONS
# No limit refused the request; its ticket is not open any more.
LOST = "lost"


Headers = tuple[tuple[bytes, bytes], ...]


class Run(Message, frozen=True):
    """The caller must run the request as number `run`, from the event `position` on, and reads its record."""

    record: int
    run: int
    position: str


class Attached(Message, frozen=True):
    """The request runs already, or has run: the caller reads its record."""

    record: int


class Conflict(Message, frozen=True):
    """The key belongs to another request."""


class Full(Message, frozen=True):
    """There is no room for a record."""


class Page(Message, frozen=True):
    """A part of a record. `is_orphaned`: the process that ran it is gone. `is_lost`: its bytes are gone."""

    status: int = 0
    headers: Headers = ()
    body: bytes = b""
    is_over: bool = False
    is_orphaned: bool = False
    is_lost: bool = False


class CoreRefusal(Message, frozen=True):
    """The reason why a core cannot be added, or cannot leave. `is_unknown`: there is no core of this index."""

    text: str
    is_unknown: bool = False


# Envelopes between API processes and the process that has the state.


class Join(Message, frozen=True):
    """The first message of an API process; `Joined` answers it."""


class StateCall(Message, frozen=True):
    """A call of a method of `LocalState`. A `StateReply` with the same number follows, unless the number is 0."""

    number: int
    method: str
    args: tuple[Any, ...] = ()


class Beat(Message, frozen=True):
    """The state is alive. It sends one at every heartbeat, and drops a member that it cannot send it to."""


class Joined(Message, frozen=True):
    """The sender is a member. Nothing is held for it yet, whatever it held under this connection before."""


class StateReply(Message, frozen=True):
    """The reply to a `StateCall`: the method's value, or the error's text."""

    number: int
    ok: bool
    value: Any = None


MemberMessage = Join | StateCall
StateMessage = Joined | StateReply | Beat
