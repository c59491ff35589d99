"""The pieces of a sample's text, and the protocol of their parsers. Knows no model's markers and no API."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

MAX_NAME = 256  # characters of a tool's name, a key or the tag around it: a text that has more is no call


class Content(Struct, tag=True, gc=False):
    """More of the answer to the reader."""

    text: str


class Reasoning(Struct, tag=True, gc=False):
    """More of the thoughts before the answer."""

    text: str


class ToolCallBegin(Struct, tag=True, gc=False):
    """The model calls a tool; calls of one sample are numbered from 0, and their pieces never mix.

    The arguments of a `custom` tool are text, its input.
    """

    index: int
    name: str
    custom: bool = False


class ToolArguments(Struct, tag=True, gc=False):
    """More of a call's arguments.

    They are one JSON object unless the tool is custom, the sample was cut off, or the model broke it.
    """

    index: int
    text: str


Piece = Content | Reasoning | ToolCallBegin | ToolArguments


class Parser(Protocol):
    """A machine for the raw text of one sample.

    Its pieces after some number of characters depend on these alone, never on how they were split.
    """

    def feed(self, text: str) -> list[Piece]:
        """The pieces that these characters complete."""

    def finish(self) -> list[Piece]:
        """The rest, after the end of the text."""


def add(pieces: list[Piece], piece: Content | Reasoning | ToolArguments) -> None:
    """Append a piece of text, or add it to the last one where that is of the same kind."""
    if not piece.text:
        return
    last = pieces[-1] if pieces else None
    # The arguments of one call end before another call's begin.
    if last is None or isinstance(last, ToolCallBegin) or type(last) is not type(piece):
        pieces.append(piece)
    else:
        last.text += piece.text


class CallWriter:
    """Makes pieces of the calls in a sample, and numbers them."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []  # the pieces that were not taken yet
        self.num_calls = 0
        self.missing = ""  # the text that would close the last call's broken arguments, or nothing

    def begin(self, name: str) -> None:
        """Begin a call, after closing the last one's arguments if they lack only that."""
        self.close()
        self.pieces.append(ToolCallBegin(self.num_calls, name))
        self.num_calls += 1

    def give(self, arguments: str) -> None:
        """Add arguments to the last call."""
        add(self.pieces, ToolArguments(self.num_calls - 1, arguments))

    def close(self) -> None:
        """End the arguments of the last call."""
        self.give(self.missing)
        self.missing = ""

    def taken(self) -> list[Piece]:
        """The pieces so far, which are not given again."""
        pieces, self.pieces = self.pieces, []
        return pieces


class PlainParser:
    """A parser to which all text is content."""

    def feed(self, text: str) -> list[Piece]:
        """The text."""
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        """Nothing was held back."""
        return []


class ToolCall(Struct):
    """One whole call. `arguments` is JSON as the model wrote it, or mended; of a `custom` tool the input."""

    name: str
    arguments: str = ""
    custom: bool = False


class ParsedText(Struct):
    """A whole sample. A part that never came is empty."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = []


def folded(pieces: Iterable[Piece]) -> ParsedText:
    """The sum of all pieces of a sample: an answer that is not streamed is this."""
    content, reasoning = [], []
    calls: list[tuple[ToolCallBegin, list[str]]] = []
    for piece in pieces:
        match piece:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case ToolCallBegin():
                calls.append((piece, []))
            case ToolArguments(index, text):
                calls[index][1].append(text)
    tool_calls = [ToolCall(begin.name, "".join(arguments), begin.custom) for begin, arguments in calls]
    return ParsedText("".join(content), "".join(reasoning), tool_calls)
