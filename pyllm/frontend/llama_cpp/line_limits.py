"""The early end of code that is filled in: at a line that leaves its block, or when time is up. Knows no request."""

import re
import time
from collections.abc import Callable

_LINE_START = re.compile(r"\n[ \t]*")


class LineLimits:
    """The limits of one text: at least `num_indent` blanks before each line but the first, and `seconds` in all.

    0 is no limit. Time counts from the first call of `take`, and ends only a text that has a whole line.
    """

    def __init__(self, num_indent: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_indent = num_indent
        self._seconds = seconds
        self._clock = clock
        self._start: float | None = None
        self._line_start = ""  # of the last line, while it has too few blanks and nothing else
        self._has_line = False
        self._is_cut = False

    def take(self, new: str) -> tuple[str, bool]:
        """The part of the new text that stays, and whether the whole text ends there."""
        now = self._clock()
        self._start = now if self._start is None else self._start
        self._has_line |= "\n" in new
        if self._num_indent:
            new = self._cut(new)
        return new, self._is_cut or (self._has_line and 0 < self._seconds < now - self._start)

    def _cut(self, new: str) -> str:
        """Keep the text up to the first line that has too few blanks before it, and these blanks."""
        if self._is_cut:
            return ""
        num_known = len(self._line_start)
        text, self._line_start = self._line_start + new, ""
        for start in _LINE_START.finditer(text):
            if len(start[0]) > self._num_indent:  # The end of the line before it is no blank.
                continue
            if start.end() < len(text):
                self._is_cut = True
                return new[: start.end() - num_known]
            self._line_start = start[0]
        return new
