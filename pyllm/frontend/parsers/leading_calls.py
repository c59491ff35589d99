"""Tells a text that is all calls from one that is all content, by how it begins. Knows no way to write calls."""

from pyllm.frontend.parsers.pieces import Parser, Piece, PlainParser


class LeadingCalls:
    """Another parser's pieces if the text begins with one of its markers, and content alone otherwise."""

    def __init__(self, parser: Parser, markers: tuple[str, ...]) -> None:
        self._parser = parser
        self._markers = markers
        self._chosen: Parser | None = None
        self._held = ""  # the beginning of a marker, as long as there is no more

    def feed(self, text: str) -> list[Piece]:
        """Nothing as long as it may be a marker."""
        if self._chosen is not None:
            return self._chosen.feed(text)
        self._held += text
        if any(marker != self._held and marker.startswith(self._held) for marker in self._markers):
            return []
        return self._choose()

    def finish(self) -> list[Piece]:
        """What was held back."""
        pieces = [] if self._chosen is not None else self._choose()
        assert self._chosen is not None
        return pieces + self._chosen.finish()

    def _choose(self) -> list[Piece]:
        self._chosen = self._parser if self._held.startswith(self._markers) else PlainParser()
        text, self._held = self._held, ""
        return self._chosen.feed(text)
