"""Parsers of reasoning between markers at the beginning. Another parser reads the rest."""

from typing import Protocol

from pyllm.frontend.chat.parsers.harmony import HarmonyParser
from pyllm.frontend.chat.parsers.markers import MarkerFinder
from pyllm.frontend.chat.parsers.parsed_pieces import Content, Parser, Piece, PlainParser, Reasoning, add
from pyllm.frontend.chat.parsers.reasoning_forms import THINK, ReasoningForm


class Reasoner(Parser, Protocol):
    """A parser that knows where a sample's reasoning ends."""

    @property
    def reasoning_end(self) -> int | None:
        """In characters of the sample, once it is known; 0 if there is none."""


def make_reasoner(form: ReasoningForm, rest: Parser, opened: bool, separate: bool) -> Reasoner:
    """A machine for the raw text of one sample. Unless it is to be `separate`, reasoning stays in the content."""
    if form.in_channels:
        return ChannelReasoning(rest, separate)
    return ThinkParser(rest, opened, form) if separate else RawReasoning(rest, opened, form)


class ThinkParser:
    """Splits reasoning off. With `opened` the prompt ends with the opening, so the sample begins with reasoning.

    Whitespace around markers is dropped. A sample without an opening, in the prompt or its own, has no reasoning.
    """

    def __init__(self, rest: Parser, opened: bool, form: ReasoningForm = THINK) -> None:
        self.reasoning_end: int | None = None  # in characters of the sample, once it is known; 0 if there is none
        self.begun = False  # whether the opening has come, or was not needed
        self._rest = rest
        self._openings = form.openings
        self._closing = MarkerFinder(form.closings)
        self._opened = opened
        self._strips = True  # whitespace
        self._whitespace: list[str] = []  # before the opening, or before other text
        self._held = ""  # the beginning of an opening
        self._num_characters = 0

    def feed(self, text: str) -> list[Piece]:
        """Reasoning that cannot be part of a marker; after its end the other parser's pieces."""
        pieces: list[Piece] = []
        self._num_characters += len(text)
        if not self.begun and self.reasoning_end is None:
            text, self._held = self._held + text, ""
            text = self._open(text)
        if self.begun and self.reasoning_end is None:
            text = self._reason(text, pieces)
        if self.reasoning_end is None:
            return pieces
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return pieces + self._rest.feed(text)

    def finish(self) -> list[Piece]:
        """The rest, after the end of the sample."""
        pieces: list[Piece] = []
        held, self._held = "".join([*self._whitespace, self._held, self._closing.rest()]), ""
        if self.reasoning_end is None and (self.begun or self._opened):
            add(pieces, Reasoning(held.lstrip() if self._strips else held))
        elif self.reasoning_end is None:
            self.reasoning_end = 0
            pieces += self._rest.feed(held)
        return pieces + self._rest.finish()

    def _open(self, text: str) -> str:
        """Drop the opening. Return the text after it, or nothing while the opening may still come."""
        bare = text.lstrip()
        self._whitespace.append(text[: len(text) - len(bare)])
        if any(opening.startswith(bare) and opening != bare for opening in self._openings):
            self._held = bare
            return ""
        text = "".join([*self._whitespace, bare])
        self._whitespace.clear()
        for opening in self._openings:
            if bare.startswith(opening):
                self.begun = True
                return bare.removeprefix(opening)
        if self._opened:
            self.begun = True
        else:
            self.reasoning_end, self._strips = 0, False
        return text

    def _reason(self, text: str, pieces: list[Piece]) -> str:
        """Add reasoning up to the closing. Return the text after it."""
        position = 0
        while position < len(text) and self.reasoning_end is None:
            if self._strips:
                text, position = text[position:].lstrip(), 0
                self._strips = not text
                continue
            found = self._closing.find(text, position)
            position = found.position
            add(pieces, Reasoning(found.text))
            if found.marker:
                self.reasoning_end, self._strips = self._num_characters - (len(text) - position), True
        return text[position:]


class RawReasoning:
    """Leaves reasoning in the content as it was written, markers included. Another parser reads the rest."""

    def __init__(self, rest: Parser, opened: bool, form: ReasoningForm = THINK) -> None:
        self._rest = rest
        self._think = ThinkParser(PlainParser(), opened, form)
        self._opened = opened
        self._held: list[str] = []  # the sample, until it is known whether it begins with reasoning
        self._num_given = 0  # characters of reasoning
        self._after_reasoning = False  # whitespace is still part of the reasoning

    @property
    def reasoning_end(self) -> int | None:
        """As `ThinkParser.reasoning_end`."""
        return self._think.reasoning_end

    def feed(self, text: str) -> list[Piece]:
        """Reasoning as content; after its end the other parser's pieces."""
        pieces: list[Piece] = []
        if self.reasoning_end is None:
            self._think.feed(text)
            self._held.append(text)
            if self.reasoning_end is None and not (self._opened or self._think.begun):
                return []
            text = "".join(self._held)
            self._held.clear()
            if self.reasoning_end is None:
                return self._reasoning(text)
            size = self.reasoning_end - self._num_given
            pieces += self._reasoning(text[:size])
            text = text[size:]
            self._after_reasoning = self.reasoning_end > 0
        if self._after_reasoning:
            bare = text.lstrip()
            add(pieces, Content(text[: len(text) - len(bare)]))
            self._after_reasoning, text = not bare, bare
        return pieces + self._rest.feed(text) if text else pieces

    def finish(self) -> list[Piece]:
        """The rest, after the end of the sample."""
        held = "".join(self._held)
        self._held.clear()
        pieces = self._rest.feed(held) if held else []
        self._think.finish()
        return pieces + self._rest.finish()

    def _reasoning(self, text: str) -> list[Piece]:
        self._num_given += len(text)
        return [Content(text)] if text else []


class ChannelReasoning:
    """Harmony's reasoning, which another parser of Harmony finds: it stays apart, or precedes the content."""

    def __init__(self, rest: Parser, separate: bool) -> None:
        self._rest = rest
        self._separate = separate
        self._messages: HarmonyParser | None = HarmonyParser()  # to find the end of the reasoning
        self._has_reasoning = False
        self.reasoning_end: int | None = None

    def feed(self, text: str) -> list[Piece]:
        """The other parser's pieces."""
        if self._messages is not None:
            self._messages.feed(text)
            self._look(self._messages)
        return self._placed(self._rest.feed(text))

    def finish(self) -> list[Piece]:
        """The other parser's rest."""
        if self._messages is not None:
            self._messages.finish()
            self._look(self._messages)
        return self._placed(self._rest.finish())

    def _look(self, messages: HarmonyParser) -> None:
        self.reasoning_end = messages.reasoning_end
        if self.reasoning_end is not None:
            self._messages = None

    def _placed(self, pieces: list[Piece]) -> list[Piece]:
        if self._separate:
            return pieces
        placed: list[Piece] = []
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    self._has_reasoning = True
                    add(placed, Content(text))
                case Content(text):
                    add(placed, Content(f"\n\n{text}" if self._has_reasoning else text))
                    self._has_reasoning = False
                case _:
                    placed.append(piece)
        return placed
