"""What API processes say to the state that they share, and what it answers: plain values, fit for a wire."""

import msgspec

from pyllm.api_keys import Allowance


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True, omit_defaults=True, gc=False):
    pass


class Admission(_Message, frozen=True):
    """A request that wants in. `ticket` is a number that its API process has not used before.

    `account` is whose budget it is on, `num_sequences` how many sequences the core is to compute for it.
    """

    ticket: int
    account: str = ""
    allowance: Allowance = Allowance()
    num_sequences: int = 1


class Remaining(_Message, frozen=True):
    """What is left of one budget of so much a minute; full again in `reset` seconds."""

    limit: int
    remaining: int
    reset: float


class Granted(_Message, frozen=True):
    """It may go on. Budgets are None where there is no limit; with `counts_tokens` its prompt is to be charged."""

    requests: Remaining | None = None
    tokens: Remaining | None = None
    counts_tokens: bool = False


class Refused(_Message, frozen=True):
    """It may not, and nothing is held for it. `reason` is a word of `REASONS`, `retry_after` in seconds.

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
