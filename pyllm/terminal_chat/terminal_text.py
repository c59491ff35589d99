"""Makes text of models and servers safe for a terminal, and repairs input that is not UTF-8."""

import io
import re
import sys
from typing import TextIO

# Control characters, which may move the cursor or change the terminal, without tab and line feed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# Surrogates, to which Python decodes invalid bytes.
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def plain(text: str) -> str:
    """The text without control characters, so that no model or server controls the terminal."""
    return _CONTROL.sub("", text)


def open_stdin() -> TextIO:
    """Standard input, with invalid bytes decoded to surrogates, which `whole` replaces."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin


def whole(text: str) -> str:
    """The text with U+FFFD in place of surrogates, which cannot be encoded in a request."""
    return _HALF_PAIR.sub("\ufffd", text)
