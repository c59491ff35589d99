"""Calls within reasoning that was never closed: complete calls at its very end count as calls.

Knows no call format, and no marker of reasoning.
"""

import json
from collections.abc import Callable, Sequence

from msgspec import Struct

from pyllm.frontend.chat.parsers.parsed_pieces import Content, Parser, Piece, folded
from pyllm.frontend.chat.parsers.values.markers import MarkerFinder


class CallSyntax(Struct, frozen=True):
    """The markers that begin a model's calls, and a maker of parsers for them."""

    markers: tuple[str, ...]
    make_parser: Callable[[], Parser]


class Draft:
    """Text from a call's marker on, as long as it may be calls and nothing else.

    `blank` is the whitespace before the marker. `closing` is the closing marker of reasoning, once it has come.
    """

    def __init__(self, syntax: CallSyntax, closings: Sequence[str], blank: str, marker: str) -> None:
        self.blank = blank
        self._syntax = syntax
        self._text = [marker]
        self._parser = syntax.make_parser()
        self._pieces: list[Piece] = self._parser.feed(marker)
        self._closings = MarkerFinder(closings, strips=False)
        self.size = len(marker)  # in characters
        self.closing = ""

    @property
    def text(self) -> str:
        """The whole draft."""
        return "".join(self._text)

    def feed(self, char: str) -> bool:
        """Take a character; return whether the text may still be calls and nothing else."""
        self._text.append(char)
        self.size += 1
        self.closing = self._closings.find(char, 0).marker
        pieces = self._parser.feed(char)
        self._pieces += pieces
        return not any(isinstance(piece, Content) for piece in pieces)

    def split(self) -> tuple[str, str]:
        """The text that is no call, and the rest from the last marker on, which may be a draft of its own.

        Without another marker the text is split behind the first one.
        """
        text, end = self.text, len(self._text[0])
        last = max(text.rfind(marker, end) for marker in self._syntax.markers)
        if last >= 0:
            end = len(text[:last].rstrip())
        return text[:end], text[end:]

    def is_complete(self) -> bool:
        """Whether the draft is complete calls and nothing else, at the end of the text."""
        whole = folded([*self._pieces, *self._parser.finish()])
        return bool(whole.tool_calls) and not whole.content and all(_is_object(c.arguments) for c in whole.tool_calls)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
