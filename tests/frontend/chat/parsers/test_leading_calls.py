"""The beginning of a text decides who reads it, and nothing of the text is lost or changed."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.leading_calls import LeadingCalls
from pyllm.frontend.chat.parsers.parsed_pieces import Content, ParsedText, Piece, Reasoning, folded

# One marker begins with another, and texts are likely to begin like them.
MARKERS = ("<a>", "<a>b", "[")
TEXTS = st.text(st.sampled_from("<a>b[ "), max_size=8)


class AsReasoning:
    """Another parser, whose pieces show that it was chosen. It holds all back until the end."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> list[Piece]:
        self._text += text
        return []

    def finish(self) -> list[Piece]:
        return [Reasoning(self._text)]


def run(parts: Iterable[str]) -> ParsedText:
    parser = LeadingCalls(AsReasoning(), MARKERS)
    pieces = [piece for part in parts for piece in parser.feed(part)]
    return folded([*pieces, *parser.finish()])


@given(TEXTS, st.lists(st.integers(0, 4), max_size=6))
def test_the_other_parser_reads_texts_that_begin_with_a_marker(text: str, sizes: list[int]) -> None:
    expected = ParsedText(reasoning=text) if text.startswith(MARKERS) else ParsedText(text)
    parts, rest = [], text
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    assert run([*parts, rest]) == expected


@given(TEXTS)
def test_content_is_held_only_while_it_may_become_a_marker(text: str) -> None:
    parser, given_so_far = LeadingCalls(AsReasoning(), MARKERS), ""
    for end, char in enumerate(text, 1):
        for piece in parser.feed(char):
            assert isinstance(piece, Content)
            given_so_far += piece.text
        begun = text[:end]
        may_be_call = begun.startswith(MARKERS) or any(marker.startswith(begun) for marker in MARKERS)
        assert given_so_far == ("" if may_be_call else begun)
