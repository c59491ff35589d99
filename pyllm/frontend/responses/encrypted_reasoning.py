"""Reasoning as `encrypted_content`: how a caller that stores nothing with the server carries it to the next turn.

It is encoded, not encrypted, as the same text is in the item's `content`.
"""

import base64

_PREFIX = b"pyllm1:"


def encode_reasoning(text: str) -> str:
    """The text as `encrypted_content`."""
    return base64.b64encode(_PREFIX + text.encode()).decode()


def decode_reasoning(content: str) -> str | None:
    """The text again; None for what another server has made."""
    try:
        plain = base64.b64decode(content, validate=True)
        return plain.removeprefix(_PREFIX).decode() if plain.startswith(_PREFIX) else None
    except ValueError:
        return None
