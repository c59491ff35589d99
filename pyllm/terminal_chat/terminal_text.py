"""Text of others made safe for a terminal."""

import re

# Whatever moves the cursor or changes the terminal, but tabs and ends of lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """The text without control characters, so that no model or server commands the terminal."""
    return _CONTROL.sub("", text)
