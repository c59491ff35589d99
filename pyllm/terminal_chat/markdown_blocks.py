"""Splits growing Markdown into finished blocks and the rest. Renders nothing."""

import re
from itertools import pairwise

from markdown_it import MarkdownIt

_LINE_END = re.compile(r"\r\n|\r|\n")  # line ends as the parser counts them


class MarkdownBlocks:
    """Takes text in pieces of any size. The returned blocks and `rest` together are that text.

    A block is finished when a complete line has begun the next one: later text can neither change nor extend it. So
    the blocks do not depend on the pieces.
    """

    def __init__(self) -> None:
        self.rest = ""  # the text after the last finished block
        self._parser = MarkdownIt().enable("table")  # as rich renders it

    def feed(self, text: str) -> list[str]:
        """The blocks that this text finishes, each with the blank lines after it."""
        self.rest += text
        if "\n" not in text:
            return []
        whole = self.rest[: self.rest.rindex("\n") + 1]
        line_starts = [0, *(match.end() for match in _LINE_END.finditer(whole))]
        blocks = [token.map[0] for token in self._parser.parse(whole) if token.level == 0 and token.map is not None]
        # Before the first block there are only blank lines or link definitions.
        cuts = [0, *(line_starts[line] for line in blocks[1:])]
        finished = [self.rest[start:end] for start, end in pairwise(cuts)]
        self.rest = self.rest[cuts[-1] :]
        return finished

    def take(self) -> str:
        """Remove and return the rest, as the last block."""
        rest, self.rest = self.rest, ""
        return rest
