"""Runs one sample through its parser: gives its pieces, and counts its reasoning tokens. Knows no API."""

from array import array
from collections.abc import Callable

from pyllm.frontend.chat.parsers.drafted_calls import CallSyntax
from pyllm.frontend.chat.parsers.parsed_pieces import Parser, Piece, PlainParser, ToolCallBegin
from pyllm.frontend.chat.parsers.reasoning_parsers import THINK, ReasoningForm
from pyllm.frontend.chat.parsers.think import make_reasoner
from pyllm.frontend.text.detokenizer import TextDelta
from pyllm.frontend.text.text_decoder import TextDecoder


class SampleParser:
    """Parses the deltas of one sample, which may be merged or cut in any way. `make_decoder` is for its tokens.

    With `thinks_opened` reasoning is split off first: True where the prompt opened it, False where the model may.
    Reasoning stays in the content unless `separate`. `form` and `calls` are the model's.
    """

    def __init__(
        self,
        parser: Parser | None,
        make_decoder: Callable[[], TextDecoder],
        thinks_opened: bool | None = None,
        separate: bool = True,
        form: ReasoningForm = THINK,
        *,
        calls: CallSyntax | None = None,
    ) -> None:
        parser = PlainParser() if parser is None else parser
        self._think = None if thinks_opened is None else make_reasoner(form, parser, thinks_opened, separate, calls)
        self._parser = parser if self._think is None else self._think
        self._make_decoder = make_decoder
        self._tokens = array("i")  # as long as it is not known which of them were reasoning
        self.num_reasoning_tokens = 0  # all so far while it reasons, and then those up to the end of the closing
        self.has_tool_calls = False

    def feed(self, delta: TextDelta) -> list[Piece]:
        """The pieces of a delta; after the last delta also all text that was held back."""
        was_open = self._think is not None and self._think.reasoning_end is None
        pieces = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            pieces += self._parser.finish()
        if was_open:
            self._count(delta.tokens)
        if not self.has_tool_calls:
            self.has_tool_calls = any(isinstance(piece, ToolCallBegin) for piece in pieces)
        return pieces

    def _count(self, tokens: list[int]) -> None:
        assert self._think is not None
        self._tokens.extend(tokens)
        end = self._think.reasoning_end
        if end is None:
            self.num_reasoning_tokens = len(self._tokens)
            return
        decoder = self._make_decoder()
        length = count = 0
        while length < end and count < len(self._tokens):
            length += len(decoder.decode((self._tokens[count],)))
            count += 1
        self.num_reasoning_tokens = count
        self._tokens = array("i")
