"""Where code that is filled in ends early: at a line that leaves its block, and when time is up. Knows no request."""

import re
import time
from collections.abc import Callable

_LINE = re.compile(r"\n([ \t]*)(?=[^ \t])")


class LineLimits:
    """`num_indent` are the least blanks before each line but the first; `seconds` run from a text's first token on.

    0 is no limit. Time ends only a text that has a whole line.
    """

    def __init__(self, num_indent: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_indent = num_indent
        self._seconds = seconds
        self._clock = clock
        self._texts: dict[int, str] = {}
        self._starts: dict[int, float] = {}

    def may_end(self, choice: int, new: str) -> bool:
        """Whether a choice's text is as long as it gets with this new part."""
        now = self._clock()
        start = self._starts.setdefault(choice, now)
        text = self._texts[choice] = self._texts.get(choice, "") + new
        is_late = 0 < self._seconds < now - start and "\n" in text
        return is_late or len(self.cut(text)) < len(text)

    def cut(self, text: str) -> str:
        """The text up to the first line that has too little before it, and these blanks."""
        ends = (line.end(1) for line in _LINE.finditer(text) if len(line[1]) < self._num_indent)
        return text[: next(ends, None)]
