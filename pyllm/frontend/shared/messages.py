"""What API processes say to the state that they share, and what it answers: plain values, fit for a wire."""

from typing import Any

from pyllm.api_keys import Allowance
from pyllm.messages import Message

# Beats without a word of the other end until it is taken for dead. Counted, not timed: who was stopped blames nobody.
MAX_SILENT_BEATS = 20


class Admission(Message, frozen=True):
    """A request that wants in. `ticket` is a number that its API process has not used before.

    `account` is whose budget it is on, `num_sequences` how many sequences the core is to compute for it.
    """

    ticket: int
    account: str = ""
    allowance: Allowance = Allowance()
    num_sequences: int = 1


class Remaining(Message, frozen=True):
    """What is left of one budget of so much a minute; full again in `reset` seconds."""

    limit: int
    remaining: int
    reset: float


class Granted(Message, frozen=True):
    """It may go on. Budgets are None where there is no limit; with `counts_tokens` its prompt is to be charged."""

    requests: Remaining | None = None
    tokens: Remaining | None = None
    counts_tokens: bool = False


class Refused(Message, frozen=True):
    """It may not, and nothing is held for it. `reason` is a word of `REASONS` or `LOST`, `retry_after` in seconds.

    Without a `retry_after` it never can.
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
# Nobody has refused it, but its ticket is not open any more.
LOST = "lost"


Headers = tuple[tuple[bytes, bytes], ...]


class Run(Message, frozen=True):
    """The caller is to run a request under this number, from the event of this id on, and reads its record."""

    record: int
    run: int
    position: str


class Attached(Message, frozen=True):
    """Another one runs it, or has run it: the caller reads its record."""

    record: int


class Conflict(Message, frozen=True):
    """The key is that of another request."""


class Full(Message, frozen=True):
    """There is no room for a record."""


class Page(Message, frozen=True):
    """Some of a record. With `is_orphaned` whoever ran it is gone; with `is_lost` its bytes are."""

    status: int = 0
    headers: Headers = ()
    body: bytes = b""
    is_over: bool = False
    is_orphaned: bool = False
    is_lost: bool = False


# Between API processes and the process that has the state.


class Join(Message, frozen=True):
    """The first message of an API process; answered by `Joined`."""


class Ask(Message, frozen=True):
    """A call that is answered by a `Told` with the same number."""

    number: int
    method: str
    args: tuple[Any, ...] = ()


class Tell(Message, frozen=True):
    """A call that is not answered."""

    method: str
    args: tuple[Any, ...] = ()


class Beat(Message, frozen=True):
    """A sign of life of the state, at every heartbeat: a member that cannot be sent it any more is gone."""


class Joined(Message, frozen=True):
    """What the sender held under the same connection before, if anything, is given back."""


class Told(Message, frozen=True):
    """The answer to an `Ask`: a value, or the error's text."""

    number: int
    ok: bool
    value: Any = None


MemberMessage = Join | Ask | Tell
StateMessage = Joined | Told | Beat
