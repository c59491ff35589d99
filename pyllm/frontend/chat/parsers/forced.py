"""Calls that a request demands, in a format that a grammar guarantees; and the limit of one call."""

from pyllm.frontend.chat.parsers.parsed_pieces import Content, Parser, Piece, ToolArguments, ToolCallBegin


class ForcedCall:
    """A parser of text that is all the arguments of one call, or the input of a `custom` tool."""

    def __init__(self, name: str, custom: bool = False) -> None:
        self._name = name
        self._custom = custom
        self._begun = False

    def feed(self, text: str) -> list[Piece]:
        """The call, with its first character, and its arguments."""
        if not text:
            return []
        arguments = ToolArguments(0, text)
        if self._begun:
            return [arguments]
        self._begun = True
        return [ToolCallBegin(0, self._name, self._custom), arguments]

    def finish(self) -> list[Piece]:
        """Nothing was held back."""
        return []


class OnlyCalls:
    """Another parser's pieces without content, which in a text of calls is the beginning of a call cut off."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Piece]:
        """The other parser's pieces, without content."""
        return _without_content(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        """The other parser's rest, without content."""
        return _without_content(self._parser.finish())


class UncutCalls:
    """Another parser's pieces, without the beginning of a call that the end of the text cuts off."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Piece]:
        """The other parser's pieces."""
        return self._parser.feed(text)

    def finish(self) -> list[Piece]:
        """The other parser's rest without content, which is the beginning of a call cut off."""
        return _without_content(self._parser.finish())


class FirstCall:
    """Another parser's pieces, without all calls but the first."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Piece]:
        """The other parser's content, and pieces of the first call."""
        return _without_others(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        """The rest of the other parser's content and first call."""
        return _without_others(self._parser.finish())


def _without_content(pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if not isinstance(piece, Content)]


def _without_others(pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if not isinstance(piece, ToolCallBegin | ToolArguments) or piece.index == 0]
