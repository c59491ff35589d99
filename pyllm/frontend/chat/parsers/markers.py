"""Finds the end of a text that may still become a marker. Markers contain no whitespace."""


def num_held(text: str, marker: str) -> int:
    """How many characters at the end of a text may be whitespace before a marker, and the marker's beginning."""
    length = min(len(marker) - 1, len(text)) if marker else 0
    while length and not text.endswith(marker[:length]):
        length -= 1
    begun = len(text) - length
    return len(text) - len(text[:begun].rstrip()) if marker else 0
