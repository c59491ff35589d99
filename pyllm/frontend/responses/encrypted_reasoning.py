"""Reasoning as `encrypted_content`, in which a caller that stores nothing on the server keeps it for the next turn.

The text is encoded, not encrypted, as the item's `content` has it, too.
"""

import base64

_PREFIX = b"pyllm1:"


def encode_reasoning(text: str) -> str:
    """The text as `encrypted_content`."""
    return base64.b64encode(_PREFIX + text.encode()).decode()


def decode_reasoning(content: str) -> str | None:
    """The text again; None for the content of another server."""
    try:
        plain = base64.b64decode(content, validate=True)
        return plain.removeprefix(_PREFIX).decode() if plain.startswith(_PREFIX) else None
    except ValueError:
        return None
