"""Log-probabilities as users get them, and the columns of `Deltas` that they come from. Knows no text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from pyllm.wire.messages import Deltas

MOST_UNPACKED = 256  # entries of a position
_PART = 4096  # entries that are made in one call, which takes 1 ms


class Logprob(msgspec.Struct, gc=False):
    """One token's log-probability; `rank` 1 is the likeliest. `decoded_token` is None without a tokenizer."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class PackedEntries(Mapping[int, Logprob]):
    """The many entries of one position, which are made only when they are read: a whole vocabulary takes 10 ms or more.

    `token_text` gives their `decoded_token`.
    """

    __slots__ = ("_columns", "_unpacked", "token_text")

    def __init__(self, ids: "memoryview[int]", values: "memoryview[float]", ranks: "memoryview[int]") -> None:
        self.token_text: Callable[[int], str | None] = no_text
        self._columns = ids, values, ranks
        self._unpacked: dict[int, Logprob] | None = None

    def __getitem__(self, token: int) -> Logprob:
        return self._kept()[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept())

    def __len__(self) -> int:
        return len(self._kept())

    def part(self, start: int, end: int) -> dict[int, Logprob]:
        """The entries `start` to `end`, newly made; the first is that of the token at this position."""
        ids, values, ranks = (column[start:end].tolist() for column in self._columns)
        return dict(zip(ids, map(Logprob, values, ranks, map(self.token_text, ids)), strict=True))

    def unpack(self) -> dict[int, Logprob]:
        """All entries, newly made, in parts: other threads run between them."""
        entries = {}
        for start in range(0, len(self._columns[0]), _PART):
            entries.update(self.part(start, start + _PART))
        return entries

    def _kept(self) -> dict[int, Logprob]:
        if self._unpacked is None:
            self._unpacked = self.unpack()
        return self._unpacked


# The entries of one position by token id: the token at this position, then the likeliest ones, best first.
LogprobEntries = dict[int, Logprob] | PackedEntries


class LogprobColumns(NamedTuple):
    """Columns of log-probabilities: token i has entries `starts[i]` to `starts[i + 1]` of the other columns."""

    starts: list[int]
    ids: "memoryview[int]"
    values: "memoryview[float]"
    ranks: "memoryview[int]"

    def of(self, first: int, end: int) -> list[LogprobEntries] | None:
        """The entries of tokens `first` to `end`; None if these tokens have none."""
        bounds = self.starts[first : end + 1]
        if bounds[0] == bounds[-1]:
            return None
        return [self._entries(start, stop) for start, stop in pairwise(bounds)]

    def _entries(self, start: int, stop: int) -> LogprobEntries:
        packed = PackedEntries(self.ids[start:stop], self.values[start:stop], self.ranks[start:stop])
        return packed if stop - start > MOST_UNPACKED else packed.unpack()


def decode_logprobs(deltas: Deltas, num_tokens: int) -> LogprobColumns | None:
    """The columns of a message whose rows have `num_tokens` tokens together; None if no token has any.

    Raises:
        ValueError: a column has the wrong length, or the starts do not rise from 0.
    """
    if not deltas.logprob_starts:
        return None
    try:
        columns = LogprobColumns(
            memoryview(deltas.logprob_starts).cast("i").tolist(),
            memoryview(deltas.logprob_ids).cast("i"),
            memoryview(deltas.logprob_values).cast("f"),
            memoryview(deltas.ranks).cast("i"),
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
    first = entries.part(0, 1) if isinstance(entries, PackedEntries) else entries
    return next(iter(first.items()), None)


def unpacked(entries: LogprobEntries) -> dict[int, Logprob]:
    """The entries as a dict, newly made where they are packed."""
    return entries.unpack() if isinstance(entries, PackedEntries) else entries


def are_packed(logprobs: Sequence[LogprobEntries] | None) -> bool:
    """Whether the entries of some position are packed."""
    return any(isinstance(entries, PackedEntries) for entries in logprobs or ())


def likeliest(entries: LogprobEntries, count: int) -> Sequence[tuple[int, Logprob]]:
    """The `count` likeliest tokens, best first; equal ones by rising id."""
    return sorted(entries.items(), key=lambda entry: (-entry[1].logprob, entry[0]))[:count]


def no_text(token: int) -> None:
    """No text of a token, where there is no tokenizer, or a request wants token ids alone."""
