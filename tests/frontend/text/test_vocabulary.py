"""Words are found in tokens that join them with what is around them, and not within other words."""

import pytest

from pyllm.frontend.text.vocabulary import Vocabulary, is_edge

TEXTS = [
    "knew",
    " knew",
    "(kn",
    "\u2019k",
    "ew",
    "ew,",
    "ewe",
    "!",
    '!"',
    "a!b",
    "在中国",
    "中国人",
    "का",
    "",
    "unknew",
    " (knew)",
    "k",
]
VOCABULARY = Vocabulary(TEXTS)


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("knew", ["knew", " knew", " (knew)"]),
        ("!", ["!", '!"', "a!b"]),
        ("中国", ["在中国", "中国人"]),
        ("क", []),
        ("a", ["a!b"]),
    ],
)
def test_a_word_is_whole_where_no_letter_goes_on(word: str, texts: list[str]) -> None:
    assert [TEXTS[token] for token in VOCABULARY.with_word(word)] == texts


def test_a_token_may_end_within_the_word() -> None:
    assert VOCABULARY.places("knew") == {"(", "\u2019"}
    assert VOCABULARY.places("国x") == {"在中"}


def test_a_token_at_the_end_of_a_word_may_go_on_behind_it() -> None:
    assert [TEXTS[token] for token in VOCABULARY.longer(TEXTS.index("ew"))] == ["ew,"]
    assert list(VOCABULARY.longer(TEXTS.index(""))) == []


def test_a_zero_byte_is_no_end_of_a_text() -> None:
    assert Vocabulary(["a\0b", "ab"]).texts == ["", "ab"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a", "b", False),
        ("a", "1", False),
        ("a", "_", True),
        ("a", " ", True),
        ("", "b", True),
        ("中", "国", True),
        ("에", "서", True),
        ("क", "ा", False),
    ],
)
def test_edges(before: str, after: str, expected: bool) -> None:
    assert is_edge(before, after) == expected
