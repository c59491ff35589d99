"""Reasoning between `<think>` and `</think>`, which comes first; the rest is another parser's."""

from pyllm.frontend.parsers.markers import num_held
from pyllm.frontend.parsers.pieces import Content, Parser, Piece, PlainParser, Reasoning, add

OPENING = "<think>"
CLOSING = "</think>"


class ThinkParser:
    """Splits reasoning off. `opened` says that the prompt ends with the opening, so that all is reasoning at first.

    Whitespace around markers is dropped. A sample that begins with neither the prompt's opening nor its own has none.
    """

    def __init__(self, rest: Parser, opened: bool) -> None:
        self.reasoning_end: int | None = None  # in characters of the sample, as soon as it is known; 0 if there is none
        self._rest = rest
        self._opened = opened
        self._begun = False  # the opening has come, or was not needed
        self._strips = True  # whitespace
        self._held = ""
        self._num_characters = 0

    def feed(self, text: str) -> list[Piece]:
        """Reasoning as soon as it is no marker; then what the rest's parser gives."""
        pieces: list[Piece] = []
        self._num_characters += len(text)
        text, self._held = self._held + text, ""
        if not self._begun and self.reasoning_end is None:
            text = self._open(text)
        if self._begun and self.reasoning_end is None:
            text = self._reason(text, pieces)
        if self.reasoning_end is None:
            return pieces
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return pieces + self._rest.feed(text)

    def finish(self) -> list[Piece]:
        """What was held back."""
        pieces: list[Piece] = []
        held, self._held = self._held, ""
        if self.reasoning_end is None and (self._begun or self._opened):
            add(pieces, Reasoning(held.lstrip() if self._strips else held))
        elif self.reasoning_end is None:
            self.reasoning_end = 0
            pieces += self._rest.feed(held)
        return pieces + self._rest.finish()

    def _open(self, text: str) -> str:
        """Drop the opening if it is there; gives what follows it, or nothing as long as that is open."""
        bare = text.lstrip()
        if bare.startswith(OPENING):
            self._begun = True
            return bare.removeprefix(OPENING)
        if OPENING.startswith(bare):
            self._held = text
            return ""
        if self._opened:
            self._begun = True
        else:
            self.reasoning_end, self._strips = 0, False
        return text

    def _reason(self, text: str, pieces: list[Piece]) -> str:
        """Take reasoning up to the closing; gives what follows it."""
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        place = text.find(CLOSING)
        if place < 0:
            place = len(text) - num_held(text, CLOSING)
            add(pieces, Reasoning(text[:place]))
            self._held = text[place:]
            return ""
        add(pieces, Reasoning(text[:place].rstrip()))
        rest = text[place + len(CLOSING) :]
        self.reasoning_end, self._strips = self._num_characters - len(rest), True
        return rest


class RawReasoning:
    """Leaves reasoning in the content as it was written, markers included; the rest is another parser's."""

    def __init__(self, rest: Parser, opened: bool) -> None:
        self._rest = rest
        self._think = ThinkParser(PlainParser(), opened)
        self._begun = opened
        self._held = ""  # the sample, until it is known whether it begins with reasoning
        self._num_told = 0  # characters of reasoning
        self._after_reasoning = False  # whitespace is still reasoning's

    @property
    def reasoning_end(self) -> int | None:
        """As `ThinkParser.reasoning_end`."""
        return self._think.reasoning_end

    def feed(self, text: str) -> list[Piece]:
        """Reasoning as content; then what the rest's parser gives."""
        pieces: list[Piece] = []
        if self.reasoning_end is None:
            self._think.feed(text)
            text = self._held + text
            if self.reasoning_end is None:
                self._begun = self._begun or text.lstrip().startswith(OPENING)
                self._held = "" if self._begun else text
                return self._tell(text) if self._begun else []
            size = self.reasoning_end - self._num_told
            pieces += self._tell(text[:size])
            text, self._held = text[size:], ""
            self._after_reasoning = self.reasoning_end > 0
        if self._after_reasoning:
            bare = text.lstrip()
            add(pieces, Content(text[: len(text) - len(bare)]))
            self._after_reasoning, text = not bare, bare
        return pieces + self._rest.feed(text) if text else pieces

    def finish(self) -> list[Piece]:
        """What was held back."""
        pieces = self._rest.feed(self._held) if self._held else []
        self._think.finish()
        self._held = ""
        return pieces + self._rest.finish()

    def _tell(self, text: str) -> list[Piece]:
        self._num_told += len(text)
        return [Content(text)] if text else []
