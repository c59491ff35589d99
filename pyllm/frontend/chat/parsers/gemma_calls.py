"""Gemma's tool calls: `call:f{city:<escape>Paris<escape>,days:3}`. Does not know the markers around them."""

from pyllm.frontend.chat.parsers.literal_reader import LiteralReader, delimited
from pyllm.frontend.chat.parsers.parsed_pieces import Piece, ToolArguments, ToolCallBegin, add

_PREFIX = "call:"
_MAX_NAME = 256


class GemmaCall:
    """One call, whose strings stand between two of the `delimiter`."""

    def __init__(self, index: int, delimiter: str) -> None:
        self._index = index
        self._prefix = ""
        self._name: list[str] = []
        self._arguments: LiteralReader | None = None  # once the call has begun
        self._delimiter = delimiter
        self.done = False
        self.broken = False
        self.settled = False

    @property
    def num_calls(self) -> int:
        """How many calls it has given."""
        return int(self._arguments is not None)

    @property
    def in_arguments(self) -> bool:
        """Whether the arguments of the last call go on."""
        return self._arguments is not None and not self.done

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        self.settled = False
        if self._arguments is not None:
            return self._read(self._arguments, text, position, pieces)
        char = text[position]
        if char.isspace() and not (self._prefix and self._prefix != _PREFIX):
            return position + 1
        if self._prefix != _PREFIX:
            self._prefix += char
            self.broken = not _PREFIX.startswith(self._prefix)
        elif char == "{" and self._name:
            pieces.append(ToolCallBegin(self._index, "".join(self._name)))
            self._arguments = LiteralReader(delimited(self._delimiter))
            return self._read(self._arguments, text, position, pieces)
        else:
            self._name.append(char)
            self.broken = len(self._name) > _MAX_NAME or not (char.isalnum() or char in "_.-:/")
        return position if self.broken else position + 1

    def finish(self, pieces: list[Piece]) -> None:
        """Give what is known of a call that the end of the sample cuts off."""
        if self._arguments is not None:
            out: list[str] = []
            self._arguments.finish(out)
            add(pieces, ToolArguments(self._index, "".join(out)))
            self.settled = True

    def _read(self, reader: LiteralReader, text: str, position: int, pieces: list[Piece]) -> int:
        out: list[str] = []
        position = reader.step(text, position, out)
        add(pieces, ToolArguments(self._index, "".join(out)))
        self.done, self.broken = reader.done, reader.broken
        self.settled = not (reader.pending or reader.broken)
        return position
