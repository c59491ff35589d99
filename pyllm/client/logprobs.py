"""Log-probabilities as users get them, and the columns of `Deltas` that they come from. Knows no text."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from pyllm.wire.messages import Deltas


class Logprob(msgspec.Struct, gc=False):
    """One token's log-probability; `rank` 1 is the likeliest. `decoded_token` is None without a tokenizer."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# The entries of one position by token id: the token at this position, then the likeliest ones, best first.
LogprobEntries = dict[int, Logprob]


class LogprobColumns(NamedTuple):
    """Columns of log-probabilities: token i has entries `starts[i]` to `starts[i + 1]` of the other columns."""

    starts: list[int]
    ids: list[int]
    values: list[float]
    ranks: list[int]

    def of(self, first: int, end: int) -> list[LogprobEntries] | None:
        """The entries of tokens `first` to `end`; None if these tokens have none."""
        bounds = self.starts[first : end + 1]
        if bounds[0] == bounds[-1]:
            return None
        return [self._entries(start, stop) for start, stop in pairwise(bounds)]

    def _entries(self, start: int, stop: int) -> LogprobEntries:
        entries = zip(self.ids[start:stop], self.values[start:stop], self.ranks[start:stop], strict=True)
        return {token: Logprob(value, rank) for token, value, rank in entries}


def decode_logprobs(deltas: Deltas, num_tokens: int) -> LogprobColumns | None:
    """The columns of a message whose rows have `num_tokens` tokens together; None if no token has any.

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
    """Both lists, joined in place in the first; either may be None."""
    if known is None or more is None:
        return more if known is None else known
    known.extend(more)
    return known


def chosen(entries: LogprobEntries) -> tuple[int, Logprob] | None:
    """The token at this position and its log-probability; None if there are no entries."""
    return next(iter(entries.items()), None)


def likeliest(entries: LogprobEntries, count: int) -> Sequence[tuple[int, Logprob]]:
    """The `count` likeliest tokens, best first; equal ones by rising id."""
    return sorted(entries.items(), key=lambda entry: (-entry[1].logprob, entry[0]))[:count]
