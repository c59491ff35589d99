from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.terminal_chat.markdown_blocks import MarkdownBlocks

LINES = [
    *("", " ", "text", "more *text*", "# heading", "===", "---", "- item", "  - inner", "* other", "1. one", "2. two"),
    *("```python", "```", "~~~", "    indented", "   code", "> quote", "| a | b |", "|---|---|", "| 1 | 2 |", "<div>"),
    *("</div>", "[a]: http://b", "\tcode", "\x0c", "é\u2028", "2", "`", "<!--", "-->", "---\r", "\x00"),
]
texts = st.lists(st.sampled_from(LINES)).map("\n".join)


def blocks_of(pieces: list[str]) -> tuple[list[str], str]:
    splitter = MarkdownBlocks()
    blocks = [block for piece in pieces for block in splitter.feed(piece)]
    return blocks, splitter.rest


@given(texts, st.lists(st.integers(0, 200)))
def test_blocks_and_rest_add_up_to_the_text_and_do_not_depend_on_its_cuts(text: str, cuts: list[int]) -> None:
    blocks, rest = blocks_of([text])
    assert "".join(blocks) + rest == text
    assert all(block.strip(" ") for block in blocks)
    ends = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    assert blocks_of([text[start:end] for start, end in pairwise(ends)]) == (blocks, rest)
    assert blocks_of(list(text)) == (blocks, rest)


@pytest.mark.parametrize(
    ("text", "blocks", "rest"),
    [
        ("one\nline", [], "one\nline"),
        ("one\n\ntwo", [], "one\n\ntwo"),  # It may become "two\n===", but not part of the first paragraph: no line yet.
        ("one\n\ntwo\n", ["one\n\n"], "two\n"),
        ("# head\ntext\n", ["# head\n"], "text\n"),
        ("title\n===\n", [], "title\n===\n"),
        ("```\na\n\n# b\n", [], "```\na\n\n# b\n"),
        ("```\na\n```\nb\n", ["```\na\n```\n"], "b\n"),
        ("- a\n\n- b\n", [], "- a\n\n- b\n"),
        ("1. a\n\n2", [], "1. a\n\n2"),
        ("1. a\n\n2. b\n\nend\n", ["1. a\n\n2. b\n\n"], "end\n"),
        ("- ```\n  a\n\n  b\n", [], "- ```\n  a\n\n  b\n"),
        ("text\n\n|a|b|\n|-|-|\n|1|2|\n", ["text\n\n"], "|a|b|\n|-|-|\n|1|2|\n"),
        ("|a|\n|-|\n|1|\n\nend\n", ["|a|\n|-|\n|1|\n\n"], "end\n"),
        ("> a\nb\n\nc\n", ["> a\nb\n\n"], "c\n"),
    ],
)
def test_a_block_ends_where_the_next_begins(text: str, blocks: list[str], rest: str) -> None:
    assert blocks_of([text]) == (blocks, rest)


def test_the_rest_is_taken_once() -> None:
    splitter = MarkdownBlocks()
    splitter.feed("a\n\nb")
    assert splitter.take() == "a\n\nb"
    assert splitter.take() == ""
