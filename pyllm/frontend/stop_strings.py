"""The stop strings of one request: where one is complete in a text, and what at its end may begin one.

Keeps nothing of any text, so that all samples share it. Does not know tokens, nor when a match counts.
"""

from bisect import bisect_left, bisect_right
from weakref import WeakValueDictionary


class StopStrings:
    """All strings sorted, and all backward sorted: a binary search in the one finds a beginning, in the other an end.

    So a look at a text takes the logarithm of their number, in comparisons of C: 1,024 cost hardly more than four. They
    are made in 1 ms for as many as a request may have, and take little more memory than the strings. Why this is no
    automaton of a library: see benchmarks/README.md, "Stop strings".
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
        """Of at least one string, none of them empty."""
        self._sorted = sorted(strings)
        self._backward = sorted({string[::-1] for string in strings})
        self._longest_within = _longest_within(self._backward)
        self._first_characters = frozenset(string[0] for string in strings)
        self._last_characters = frozenset(string[-1] for string in strings)
        self._longest = max(map(len, strings))

    @classmethod
    def of(cls, strings: tuple[str, ...]) -> "StopStrings | None":
        """Those of a request, or None where it has none. While it runs, whoever asks for the same ones shares them.

        A request has one for each of its prompts otherwise, and a batch one for each of its requests.
        """
        if not strings:
            return None
        shared = _in_use.get(strings)
        if shared is None:
            shared = _in_use[strings] = cls(strings)
        return shared

    def may_begin_in(self, text: str) -> bool:
        """Whether it is worth looking: False where no stop string is in the text, nor begins in it."""
        return not self._first_characters.isdisjoint(text)

    def find(self, text: str, num_old: int) -> tuple[int, int] | None:
        """Start and end of the match that is complete first, and of those the longest.

        One that is complete within the first `num_old` characters is none.
        """
        for end in range(num_old + 1, len(text) + 1):
            if text[end - 1] in self._last_characters and (length := self._length_of_match(text, end)):
                return end - length, end
        return None

    def num_held(self, text: str) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters and self._is_beginning(text[start:]):
                return len(text) - start
        return 0

    def _is_beginning(self, text: str) -> bool:
        # In the order, what begins with a text follows at once where the text itself stands, or would stand.
        place = bisect_left(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)

    def _length_of_match(self, text: str, end: int) -> int:
        """How long the longest string that ends there is; 0 where none does."""
        backward = text[max(0, end - self._longest) : end][::-1]
        # Whatever the text begins with comes before it in the order, and what stands between begins with that, too.
        place = bisect_right(self._backward, backward) - 1
        while place >= 0 and not backward.startswith(self._backward[place]):
            place = self._longest_within[place]
        return len(self._backward[place]) if place >= 0 else 0


def _longest_within(ordered: list[str]) -> list[int]:
    """For each string the place of the longest other one that it begins with, or -1."""
    places: list[int] = []
    open_places: list[int] = []  # of what the string before begins with, and of itself
    for place, string in enumerate(ordered):
        while open_places and not string.startswith(ordered[open_places[-1]]):
            open_places.pop()
        places.append(open_places[-1] if open_places else -1)
        open_places.append(place)
    return places


_in_use: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()
