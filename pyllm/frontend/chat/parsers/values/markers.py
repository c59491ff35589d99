"""Finds markers in a text that comes in any pieces. No marker begins with whitespace, or with another marker."""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """The result of a step: text before any marker, the marker if one came, and the position to read on.

    `skipped` is the whitespace between the text and the marker.
    """

    text: str
    marker: str
    skipped: str
    position: int


class MarkerFinder:
    """Gives the text up to the first marker, as soon as it cannot be part of one.

    With `strips` whitespace before a marker is not part of the text. Each character is looked at a bounded number of
    times, however the text is cut.
    """

    __slots__ = ("_begun", "_blank", "_longest", "_markers", "_pattern", "_strips")

    def __init__(self, markers: Sequence[str], strips: bool = True) -> None:
        self._markers = markers
        self._pattern = re.compile("|".join(map(re.escape, markers))) if markers else None
        self._longest = max(map(len, markers), default=1)
        self._strips = strips
        self._blank: list[str] = []  # whitespace that may precede a marker
        self._begun = ""  # a text that may be the beginning of one

    def find(self, text: str, position: int) -> Found:
        """Read on from a position in the text, at most to its end."""
        start, end = position, len(text)
        if self._begun:
            # Few characters decide whether it is one; the rest of the text is not copied.
            end = min(end, position + self._longest)
            start, text = position - len(self._begun), self._begun + text[position:end]
            position = 0
        match = None if self._pattern is None else self._pattern.search(text, position)
        if match is not None:
            self._begun = ""
            offset = start - position
            return self._found(text[position : match.start()], match[0], match.end() + offset)
        begun = len(text) - num_begun(text, self._markers, position)
        self._begun = text[begun:]
        return self._found(text[position:begun], "", end)

    @property
    def num_held(self) -> int:
        """The number of characters that are held back."""
        return sum(map(len, self._blank)) + len(self._begun)

    def rest(self) -> str:
        """The text that was held back, at the end of all text."""
        text = "".join([*self._blank, self._begun])
        self._blank.clear()
        self._begun = ""
        return text

    def _found(self, read: str, marker: str, position: int) -> Found:
        if not self._strips:
            return Found(read, marker, "", position)
        kept = read.rstrip()
        if kept:
            kept, blank = "".join([*self._blank, kept]), read[len(kept) :]
            self._blank.clear()
        else:
            blank = read
        if marker:
            skipped = "".join([*self._blank, blank])
            self._blank.clear()
            return Found(kept, marker, skipped, position)
        if blank:
            self._blank.append(blank)
        return Found(kept, "", "", position)


class LiteralMatcher:
    """Matches one of some literals, none of which begins with another, character by character."""

    __slots__ = ("_literals", "found", "matched")

    def __init__(self, literals: Sequence[str]) -> None:
        self._literals = [literal for literal in literals if literal]
        self.matched = ""  # the part of one that has come
        self.found = ""  # the literal, once all of it has come

    def take(self, char: str) -> bool:
        """Take a character if it continues one of the literals; return whether it does."""
        matched = self.matched + char
        if not any(literal.startswith(matched) for literal in self._literals):
            return False
        self.matched = matched
        if matched in self._literals:
            self.found = matched
        return True


def num_begun(text: str, markers: Sequence[str], start: int = 0) -> int:
    """The number of characters at the end of a text, from `start` on, that may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        length = min(len(marker) - 1, len(text) - start)
        while length > longest and not text.endswith(marker[:length]):
            length -= 1
        longest = max(longest, length)
    return longest
