"""Cuts Markdown that still grows into blocks that are finished, and the rest. Renders nothing."""

import re
from itertools import pairwise

from markdown_it import MarkdownIt

_LINE_END = re.compile(r"\r\n|\r|\n")  # as the parser counts lines


class MarkdownBlocks:
    """Feeds on text in pieces of any size. The blocks that it gives and its `rest` add up to that text.

    A block is finished when a complete line has begun the next one: from then on it neither changes nor joins it. So
    the blocks do not depend on how the text was cut.
    """

    def __init__(self) -> None:
        self.rest = ""  # the text of no finished block
        self._parser = MarkdownIt().enable("table")  # as rich renders it

    def feed(self, text: str) -> list[str]:
        """The blocks that this finishes, each with the blank lines behind it."""
        self.rest += text
        if "\n" not in text:
            return []
        whole = self.rest[: self.rest.rindex("\n") + 1]
        line_starts = [0, *(match.end() for match in _LINE_END.finditer(whole))]
        blocks = [token.map[0] for token in self._parser.parse(whole) if token.level == 0 and token.map is not None]
        # Before the first block there are blank lines at most, or definitions of links.
        cuts = [0, *(line_starts[line] for line in blocks[1:])]
        finished = [self.rest[start:end] for start, end in pairwise(cuts)]
        self.rest = self.rest[cuts[-1] :]
        return finished

    def take(self) -> str:
        """The rest, as the last block: nothing follows."""
        rest, self.rest = self.rest, ""
        return rest
