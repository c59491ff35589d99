"""Log-probabilities as users get them, and the columns of `Deltas` that they come from. Knows no text."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from pyllm.wire.messages import Deltas


class Logprob(msgspec.Struct, gc=False):
    """One token's log-probability; `rank` 1 is the likeliest. `decoded_token` is None where nobody knows text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# Of one place: the token that is there first, then the likeliest ones, best first, by token id.
LogprobEntries = dict[int, Logprob]


class LogprobColumns(NamedTuple):
    """Token i has the entries `starts[i]` to `starts[i + 1]` of the others."""

    starts: list[int]
    ids: list[int]
    values: list[float]
    ranks: list[int]

    def of(self, first: int, end: int) -> list[LogprobEntries] | None:
        """Those of some tokens that follow one another; None where these have none."""
        bounds = self.starts[first : end + 1]
        if bounds[0] == bounds[-1]:
            return None
        return [self._entries(start, stop) for start, stop in pairwise(bounds)]

    def _entries(self, start: int, stop: int) -> LogprobEntries:
        entries = zip(self.ids[start:stop], self.values[start:stop], self.ranks[start:stop], strict=True)
        return {token: Logprob(value, rank) for token, value, rank in entries}


def decode_logprobs(deltas: Deltas, num_tokens: int) -> LogprobColumns | None:
    """The columns of a message whose rows have so many tokens together; None where no token has any.

    Raises:
        ValueError: a column has the wrong length, or the starts do not rise from 0.
    """
    if not deltas.logprob_starts:
        return None
    try:
        values: list[float] = memoryview(deltas.logprob_values).cast("f").tolist()  # type: ignore[assignment]
        columns = LogprobColumns(
            memoryview(deltas.logprob_starts).cast("i").tolist(),
            memoryview(deltas.logprob_ids).cast("i").tolist(),
            values,
            memoryview(deltas.ranks).cast("i").tolist(),
        )
    except TypeError:
        raise ValueError("a column of log-probabilities is not a whole number of elements long") from None
    starts = columns.starts
    lengths = [len(column) for column in columns]
    if lengths != [num_tokens + 1, starts[-1], starts[-1], starts[-1]]:
        raise ValueError(f"the columns of log-probabilities for {num_tokens} tokens have lengths {lengths}")
    if starts[0] or any(start > stop for start, stop in pairwise(starts)):
        raise ValueError("the starts of the log-probabilities' columns do not rise from 0")
    return columns


def extended(known: list[LogprobEntries] | None, more: list[LogprobEntries] | None) -> list[LogprobEntries] | None:
    """What is known and what came after, in the first one's list; either may be none at all."""
    if known is None or more is None:
        return more if known is None else known
    known.extend(more)
    return known


def chosen(entries: LogprobEntries) -> tuple[int, Logprob] | None:
    """The token that is there, and its log-probability; None where nothing was told."""
    return next(iter(entries.items()), None)


def likeliest(entries: LogprobEntries, count: int) -> Sequence[tuple[int, Logprob]]:
    """So many of the likeliest tokens, best first, of equal ones the lower id first."""
    return sorted(entries.items(), key=lambda entry: (-entry[1].logprob, entry[0]))[:count]
