"""Finds the stop strings of one request in a text, and the end of a text that may begin one.

Keeps no text, so all samples share it. Knows neither tokens nor when a match counts.
"""

from bisect import bisect_left, bisect_right
from weakref import WeakValueDictionary


class StopStrings:
    """Keeps the strings sorted, and their reversals sorted.

    Binary search finds beginnings in the first and ends in the second. A search takes time logarithmic in the number of
    strings: 1,024 cost hardly more than four. The largest set takes 1 ms to sort and little more memory than its text.
    docs/performance.md compares this with an automaton.
    """

    __slots__ = (
        "__weakref__",
        "_backward",
        "_first_characters",
        "_last_characters",
        "_longest",
        "_longest_within",
        "_sorted",
    )

    def __init__(self, strings: tuple[str, ...]) -> None:
        """Takes at least one string, none of them empty."""
        self._sorted = sorted(strings)
        self._backward = sorted({string[::-1] for string in strings})
        self._longest_within = _longest_within(self._backward)
        self._first_characters = frozenset(string[0] for string in strings)
        self._last_characters = frozenset(string[-1] for string in strings)
        self._longest = max(map(len, strings))

    @classmethod
    def of(cls, strings: tuple[str, ...]) -> "StopStrings | None":
        """Return the shared instance for these strings, or None if there are none.

        Running requests with equal strings share one.
        """
        if not strings:
            return None
        shared = _in_use.get(strings)
        if shared is None:
            shared = _in_use[strings] = cls(strings)
        return shared

    def may_begin_in(self, text: str) -> bool:
        """Whether a search is worthwhile: False where no stop string is in the text or begins in it."""
        return not self._first_characters.isdisjoint(text)

    def find(self, text: str, num_old: int) -> tuple[int, int] | None:
        """Start and end of the match that ends first; of several, the longest.

        Matches that end within the first `num_old` characters do not count.
        """
        for end in range(num_old + 1, len(text) + 1):
            if text[end - 1] in self._last_characters and (length := self._length_of_match(text, end)):
                return end - length, end
        return None

    def num_held(self, text: str) -> int:
        """The number of characters at the end of the text that may be the beginning of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters and self._is_beginning(text[start:]):
                return len(text) - start
        return 0

    def _is_beginning(self, text: str) -> bool:
        # Strings that begin with the text sort directly after its place in the order.
        index = bisect_left(self._sorted, text)
        return index < len(self._sorted) and self._sorted[index].startswith(text)

    def _length_of_match(self, text: str, end: int) -> int:
        """The length of the longest string that ends there, or 0."""
        backward = text[max(0, end - self._longest) : end][::-1]
        # A prefix of the text sorts before it, and any string between the two begins with that prefix.
        index = bisect_right(self._backward, backward) - 1
        while index >= 0 and not backward.startswith(self._backward[index]):
            index = self._longest_within[index]
        return len(self._backward[index]) if index >= 0 else 0


def _longest_within(ordered: list[str]) -> list[int]:
    """For each string the index of the longest other string that is a prefix of it, or -1."""
    indices: list[int] = []
    open_indices: list[int] = []  # of the previous string and its prefixes
    for index, string in enumerate(ordered):
        while open_indices and not string.startswith(ordered[open_indices[-1]]):
            open_indices.pop()
        indices.append(open_indices[-1] if open_indices else -1)
        open_indices.append(index)
    return indices


_in_use: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()
