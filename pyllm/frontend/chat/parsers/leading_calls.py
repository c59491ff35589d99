"""Decides by its beginning whether a text is all calls or all content. Knows no call format."""

from pyllm.frontend.chat.parsers.parsed_pieces import Parser, Piece, PlainParser


class LeadingCalls:
    """Another parser's pieces if the text begins with one of its markers. Otherwise all of it is content."""

    def __init__(self, parser: Parser, markers: tuple[str, ...]) -> None:
        self._parser = parser
        self._markers = markers
        self._chosen: Parser | None = None
        self._held = ""  # the text so far, while it may still become a marker

    def feed(self, text: str) -> list[Piece]:
        """Nothing while the text may still become a marker."""
        if self._chosen is not None:
            return self._chosen.feed(text)
        self._held += text
        if any(marker != self._held and marker.startswith(self._held) for marker in self._markers):
            return []
        return self._choose()

    def finish(self) -> list[Piece]:
        """The rest, after the end of the text."""
        pieces = [] if self._chosen is not None else self._choose()
        assert self._chosen is not None
        return pieces + self._chosen.finish()

    def _choose(self) -> list[Piece]:
        self._chosen = self._parser if self._held.startswith(self._markers) else PlainParser()
        text, self._held = self._held, ""
        return self._chosen.feed(text)
