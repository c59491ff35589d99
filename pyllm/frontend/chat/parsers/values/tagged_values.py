"""Finds the end of an argument that stands unescaped between tags, also where the model forgot the tag for it."""

from collections.abc import Collection
from typing import NamedTuple

from pyllm.frontend.chat.parsers.values.argument_tags import Tags
from pyllm.frontend.chat.parsers.values.markers import LiteralMatcher, MarkerFinder


class Read(NamedTuple):
    """The result of a step: more of the value, whether it ends there, and the position to read on.

    `following` is text that was read beyond the end of the value.
    """

    value: str
    ended: bool
    following: str
    position: int


class TaggedValue:
    """Reads one value up to the tag after it. If no further part of a call follows the tag, the tag is text.

    Where the tag is missing, the value ends before the tag of another key at a line's beginning, which must be one of
    `keys`; before the end of its call if its section is closed there, too, or another call follows; or before the
    `closing` of the section if another section, or the end of the sample, follows. A value that begins on a line of its
    own ends on a line of its own.
    """

    def __init__(self, tags: Tags, opening: str, closing: str, keys: Collection[str] = ()) -> None:
        after, end = tags.after_value, tags.end
        self._lines = tags.lines
        self._tags = tags
        self._key = f"\n{tags.before_key}"
        behind_key = filter(None, (tags.after_key, tags.text_key, tags.json_key))
        self._keys = [key + behind for behind in behind_key for key in keys]
        next_calls = [opening, tags.before_name]
        # The tags that make each of these an end, if they follow.
        self._behind = {
            after: [tags.key_stem, end, closing, *next_calls],
            end: [closing, *next_calls],
            closing: [opening],
        }
        markers = [after, end, closing]
        lined = [f"\n{marker}" for marker in markers if marker and (tags.lines or marker != after)]
        markers = [*lined, *filter(None, markers), self._key]
        self._finder = MarkerFinder(markers, strips=False)
        self._at_start = True
        self._own_line: bool | None = None  # whether the value begins on a line of its own, once that is known
        self._marker = ""  # one that may be text
        self._expected = LiteralMatcher([])  # one of these behind it makes it an end
        self._held: list[str] = []  # whitespace before them

    def read(self, text: str, position: int) -> Read:
        """Read on from a position in the text, at most to its end."""
        value: list[str] = []
        texts = [(text, position)]
        while texts:
            text, position = texts.pop()
            while position < len(text):
                if not self._marker:
                    position = self._in_value(text, position, value)
                    continue
                decided = self._decide(text[position])
                if decided is None:
                    position += 1
                elif decided:
                    return Read("".join(value), True, self._following(), position + 1)
                else:  # The text behind the marker is read again. It holds no whole marker.
                    texts.append((text, position))
                    value.append(self._without_first_break(self._marker))
                    text, position = self._behind_marker(), 0
                    self._marker = ""
        return Read("".join(value), False, "", position)

    def finish(self) -> Read:
        """The rest, after the end of the sample: there an end needs nothing behind it."""
        if self._marker and self._marker != self._key:
            return Read("", True, self._following(), 0)
        rest = self._marker + self._behind_marker() if self._marker else self._finder.rest()
        return Read(self._without_first_break(rest), False, "", 0)

    def _in_value(self, text: str, position: int, value: list[str]) -> int:
        if self._own_line is None:
            self._own_line = self._lines and text[position] == "\n"
        found = self._finder.find(text, position)
        value.append(self._without_first_break(found.text))
        if not found.marker:
            return found.position
        tag = found.marker.lstrip("\n")
        if found.marker == self._key:
            self._expect(found.marker, self._keys)
        elif found.marker == self._tags.after_value and self._own_line:
            self._expect(tag, [self._tags.before_key, *self._behind[tag][1:]])
        else:
            self._expect(found.marker, self._behind[tag])
        return found.position

    def _without_first_break(self, text: str) -> str:
        """A part of the value, without the line break before a value on a line of its own."""
        begins = self._at_start and bool(text)
        self._at_start = self._at_start and not begins
        return text[1:] if begins and self._own_line else text

    def _expect(self, marker: str, expected: list[str]) -> None:
        self._marker, self._expected, self._held = marker, LiteralMatcher(expected), []

    def _decide(self, char: str) -> bool | None:
        """Whether the marker is an end, once this character decides it."""
        if self._marker != self._key and not self._expected.matched and char.isspace():
            self._held.append(char)
            return None
        if not self._expected.take(char):
            return False
        return True if self._expected.found else None

    def _behind_marker(self) -> str:
        return "".join([*self._held, self._expected.matched])

    def _following(self) -> str:
        return ("" if self._marker.endswith(self._tags.after_value) else self._marker) + self._behind_marker()
