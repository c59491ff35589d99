"""Text of others made safe for a terminal, and text of a user that is not UTF-8."""

import io
import re
import sys
from typing import TextIO

# Whatever moves the cursor or changes the terminal, but tabs and ends of lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# What Python makes of a byte that is no character.
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def plain(text: str) -> str:
    """The text without control characters, so that no model or server commands the terminal."""
    return _CONTROL.sub("", text)


def open_stdin() -> TextIO:
    """stdin, which gives every byte: `whole` makes a text of what is no character."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin


def whole(text: str) -> str:
    """The text with U+FFFD in place of bytes that are no character, which no model could be sent."""
    return _HALF_PAIR.sub("\ufffd", text)
