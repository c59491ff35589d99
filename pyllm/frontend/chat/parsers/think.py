"""Parsers of reasoning between markers at the beginning. Another parser reads the rest."""

from typing import Protocol

from pyllm.frontend.chat.parsers.drafted_calls import CallSyntax, Draft
from pyllm.frontend.chat.parsers.harmony import HarmonyParser
from pyllm.frontend.chat.parsers.parsed_pieces import Content, Parser, Piece, PlainParser, Reasoning, add
from pyllm.frontend.chat.parsers.reasoning_parsers import THINK, ReasoningForm
from pyllm.frontend.chat.parsers.values.markers import MarkerFinder


class Reasoner(Parser, Protocol):
    """A parser that knows where a sample's reasoning ends."""

    @property
    def reasoning_end(self) -> int | None:
        """The end of reasoning in characters of the sample, once it is known; 0 if there is none."""


def make_reasoner(
    form: ReasoningForm, rest: Parser, opened: bool, separate: bool, calls: CallSyntax | None = None
) -> Reasoner:
    """A machine for the raw text of one sample. Unless `separate`, reasoning stays in the content.

    `calls` is the syntax of the calls that `rest` reads, if they have markers.
    """
    if form.in_channels:
        return ChannelReasoning(rest, separate)
    return ThinkParser(rest, opened, form, calls) if separate else RawReasoning(rest, opened, form, calls)


class ThinkParser:
    """Splits reasoning off. With `opened` the prompt ends with the opening, so the sample begins with reasoning.

    Whitespace around markers is dropped. A sample without an opening, in the prompt or its own, has no reasoning, and
    one that begins with the closing has an empty one. Where the sample ends with complete calls before the closing
    came, they end the reasoning. So text that may be such calls is held back.
    """

    def __init__(
        self, rest: Parser, opened: bool, form: ReasoningForm = THINK, calls: CallSyntax | None = None
    ) -> None:
        self.reasoning_end: int | None = None  # in characters of the sample, once it is known; 0 if there is none
        self.begun = False  # whether the opening has come, or was not needed
        self._rest = rest
        self._openings = form.openings
        self._closings = form.closings
        self._calls = calls
        self._markers = MarkerFinder([*form.closings, *(calls.markers if calls else ())])
        self._draft: Draft | None = None
        self._closed = False
        self._opened = opened
        self._strips = True  # whitespace
        self._whitespace: list[str] = []  # before the opening, or before other text
        self._held = ""  # the beginning of an opening
        self._num_characters = 0

    @property
    def num_held(self) -> int:
        """The number of characters of reasoning that are held back."""
        drafted = 0 if self._draft is None else len(self._draft.blank) + self._draft.size
        return len(self._held) + self._markers.num_held + drafted

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
        if self._draft is not None and self._draft.is_complete():
            self.reasoning_end = self._num_characters - self._draft.size
            return self._rest.feed(self._draft.text) + self._rest.finish()
        drafted = "" if self._draft is None else self._draft.blank + self._draft.text
        held, self._held = "".join([*self._whitespace, self._held, drafted, self._markers.rest()]), ""
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
        markers = (*self._openings, *self._closings)
        if any(marker.startswith(bare) and marker != bare for marker in markers):
            self._held = bare
            return ""
        text = "".join([*self._whitespace, bare])
        self._whitespace.clear()
        for opening in self._openings:
            if bare.startswith(opening):
                self.begun = True
                return bare.removeprefix(opening)
        if self._opened or bare.startswith(self._closings):
            self.begun = True
        else:
            self.reasoning_end, self._strips = 0, False
        return text

    def _reason(self, text: str, pieces: list[Piece]) -> str:
        """Add reasoning up to the closing. Return the text after it."""
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        texts = [(text, 0)]
        while texts and not self._closed:
            text, position = texts.pop()
            while position < len(text) and not self._closed:
                if self._draft is None:
                    position = self._find(text, position, pieces)
                    continue
                again = self._read_draft(self._draft, text[position], pieces)
                position += 1
                if again:
                    texts.append((text, position))
                    text, position = again, 0
            texts += [(text, position)] if position < len(text) else []
        if not self._closed:
            return ""
        rest = "".join(text[position:] for text, position in reversed(texts))
        self.reasoning_end, self._strips = self._num_characters - len(rest), True
        return rest

    def _find(self, text: str, position: int, pieces: list[Piece]) -> int:
        found = self._markers.find(text, position)
        add(pieces, Reasoning(found.text))
        self._closed = found.marker in self._closings
        if found.marker and not self._closed:
            assert self._calls is not None
            self._draft = Draft(self._calls, self._closings, found.skipped, found.marker)
        return found.position

    def _read_draft(self, draft: Draft, char: str, pieces: list[Piece]) -> str:
        """Take one more character. Return the text to be read again, which is surely no call."""
        may_be_calls = draft.feed(char)
        again = ""
        if draft.closing:
            self._closed = True
            add(pieces, Reasoning((draft.blank + draft.text.removesuffix(draft.closing)).rstrip()))
        elif not may_be_calls:
            reasoning, again = draft.split()
            add(pieces, Reasoning(draft.blank + reasoning))
        else:
            return ""
        self._draft = None
        return again


class RawReasoning:
    """Leaves reasoning in the content as it was written, markers included. Another parser reads the rest."""

    def __init__(
        self, rest: Parser, opened: bool, form: ReasoningForm = THINK, calls: CallSyntax | None = None
    ) -> None:
        self._rest = rest
        self._think = ThinkParser(PlainParser(), opened, form, calls)
        self._opened = opened
        self._held = ""  # the sample from its beginning, or a text that may be part of a marker or of calls
        self._num_given = 0  # characters of reasoning
        self._after_reasoning = False  # whitespace is still part of the reasoning

    @property
    def reasoning_end(self) -> int | None:
        """The end of reasoning, see `ThinkParser.reasoning_end`."""
        return self._think.reasoning_end

    def feed(self, text: str) -> list[Piece]:
        """Reasoning as content; after its end the other parser's pieces."""
        pieces: list[Piece] = []
        if self.reasoning_end is None:
            self._think.feed(text)
            text, self._held = self._held + text, ""
            if self.reasoning_end is None:
                reasons = self._opened or self._think.begun
                return self._reasoning(text, len(text) - self._think.num_held if reasons else 0)
            pieces += self._reasoning(text, self.reasoning_end - self._num_given)
            text, self._held = self._held, ""
            self._after_reasoning = self.reasoning_end > 0
        if self._after_reasoning:
            bare = text.lstrip()
            add(pieces, Content(text[: len(text) - len(bare)]))
            self._after_reasoning, text = not bare, bare
        return pieces + self._rest.feed(text) if text else pieces

    def finish(self) -> list[Piece]:
        """The rest, after the end of the sample."""
        pieces: list[Piece] = []
        if self.reasoning_end is None:
            self._think.finish()
            if self.reasoning_end is None:
                pieces += self._reasoning(self._held, len(self._held))
            elif self.reasoning_end > 0:  # Calls ended it. Whitespace before them is dropped.
                self._held = self._held[self.reasoning_end - self._num_given :]
            if self._held:
                pieces += self._rest.feed(self._held)
        return pieces + self._rest.finish()

    def _reasoning(self, text: str, size: int) -> list[Piece]:
        """Give some characters of a text as content, and hold the others."""
        self._num_given += size
        self._held = text[size:]
        return [Content(text[:size])] if size else []


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
