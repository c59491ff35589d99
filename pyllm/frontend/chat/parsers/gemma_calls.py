"""Gemma's tool calls: `call:f{city:<escape>Paris<escape>,days:3}`. Does not know the markers around them."""

from pyllm.frontend.chat.parsers.parsed_pieces import Piece, ToolArguments, ToolCallBegin, add
from pyllm.frontend.chat.parsers.values.literal_reader import LiteralReader, delimited

_PREFIX = "call:"
_MAX_HEADER = 256


class GemmaCall:
    """One call, whose strings stand between two of the `delimiter`. Some models leave `call` or all of `call:` out."""

    def __init__(self, index: int, delimiter: str) -> None:
        self._index = index
        self._header = ""  # up to the arguments
        self._arguments: LiteralReader | None = None  # once the call has begun
        self._delimiter = delimiter
        self.done = False
        self.broken = False
        self.settled = False
        self.in_arguments = False

    def step(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Read on."""
        self.settled = False
        if self._arguments is not None:
            return self._read(self._arguments, text, position, pieces)
        char = text[position]
        if char == "{":
            name = self._header.removeprefix(_PREFIX).removeprefix(":")
            self.broken = not name
            if self.broken:
                return position
            pieces.append(ToolCallBegin(self._index, name))
            self._arguments = LiteralReader(delimited(self._delimiter))
            return self._read(self._arguments, text, position, pieces)
        if char.isspace() and (not self._header or self._header.startswith(_PREFIX)):
            return position + 1
        self._header += char
        self.broken = len(self._header) > _MAX_HEADER or not (char.isalnum() or char in "_.-:/")
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
        self.done, self.broken, self.in_arguments = reader.done, reader.broken, not reader.done
        self.settled = not (reader.pending or reader.broken)
        return position
