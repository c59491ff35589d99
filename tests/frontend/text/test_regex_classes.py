r"""`\d`, `\w`, `\s` and their opposites take what Python's `re` takes with `re.ASCII`, wherever they stand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pyllm.errors import RequestError
from pyllm.frontend.text.regex_classes import MAX_REWRITTEN_BYTES, with_ascii_classes
from pyllm.frontend.text.structured_outputs import grammar_text
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams

TOKENIZER = LLTokenizer("byte")
# Digits, letters and spaces of ASCII and of Unicode, what is none of them, and what Python alone takes for a space.
CHARACTERS = "05azAZ_-.^&~[]#é٣\u0967ß\u041a\u043a中 \t\n\r\f\v\x1c\x85\xa0\u2003\u3000\u200b\x00\x7f\U0001d7d8€"
CLASSES = [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"]
MEMBERS = st.sampled_from(
    [*CLASSES, "a", "5", "é", "٣", ".", "a-f", "0-4", r"\-", r"\]", r"\\", r"\n", r"\x41", r"\t-\x20"]
)
SETS = st.builds(
    "[{}{}{}{}]".format,
    st.sampled_from(["", "^"]),
    st.sampled_from(["", "-", "]"]),
    st.lists(MEMBERS, min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "-"]),
)
ATOMS = st.one_of(st.sampled_from([*CLASSES, "a", r"\.", r"\\", "5", "é", "(?:a|" + r"\d)"]), SETS)
TERMS = st.builds("{}{}".format, ATOMS, st.sampled_from(["", "", "?", "*", "+", "{2}"]))
REGEXES = st.recursive(
    st.lists(TERMS, min_size=1, max_size=3).map("".join),
    lambda inner: st.one_of(
        inner.map("({})".format),
        inner.map("(?:{})?".format),
        st.lists(inner, min_size=2, max_size=2).map(lambda two: f"(?:{two[0]}|{two[1]})"),
    ),
    max_leaves=3,
)
TEXTS = st.lists(st.text(CHARACTERS, max_size=5), min_size=1, max_size=4)


def takes(regex: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar_text(StructuredOutputsParams(regex=regex)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def taken(regex: str) -> set[str]:
    return {character for character in CHARACTERS if takes(regex, character)}


def test_a_date_has_the_digits_of_ascii() -> None:
    assert takes(r"\d{4}-\d{2}-\d{2}", "2025-01-31")
    assert not takes(r"\d{4}-\d{2}-\d{2}", "\u0662\u0660\u0662\u0665-\u0660\u0661-\u0663\u0661")


def test_each_class_is_what_the_documents_say() -> None:
    assert taken(r"\d") == set(CHARACTERS) & set("0123456789")
    assert taken(r"\s") == set(" \t\n\r\f\v")
    assert taken(r"\w") == {character for character in CHARACTERS if re.fullmatch("[0-9A-Za-z_]", character)}
    for name in "dws":
        assert taken("\\" + name.upper()) == set(CHARACTERS) - taken("\\" + name)


@given(REGEXES, TEXTS)
def test_a_regex_takes_what_pythons_takes_in_ascii(regex: str, texts: list[str]) -> None:
    for text in texts:
        assert takes(regex, text) == bool(re.compile(regex, re.ASCII).fullmatch(text))


@given(st.lists(st.one_of(st.sampled_from(CLASSES), SETS), min_size=1, max_size=4), TEXTS)
def test_gaps_and_comments_of_the_mode_x_change_nothing(atoms: list[str], texts: list[str]) -> None:
    spaced = "(?x)" + " # [ ( \\d\n".join(atoms) + "\n\t# ]"
    for text in texts:
        # Python keeps the spaces in brackets, so the expression without the mode is what is compared with.
        assert takes(spaced, text) == takes("".join(atoms), text)


@pytest.mark.parametrize(
    ("regex", "yes", "no"),
    [
        # In brackets the mode x of Rust has gaps, too. The mode ends with its group.
        ("(?x) [ \\d # ]\n - ] +", "1-2", "1 2"),
        (r"(?x: [ ^ \d ] ) \ [\d ]", "é   ", "é  ٣"),
        (r"(?x)(?-x: \d) \d", " 12", "12"),
        ("(?x) a # b\nc", "ac", "a"),
        (r"(?x) \# \  \d", "# 1", "# ٣"),
        # Sets in sets, and what is done with them.
        (r"[\w--\d]", "a", "é"),
        (r"[\w--\d]", "a", "5"),
        (r"[\w&&[^\d]]", "a", "5"),
        (r"[\d~~[0-4]]", "5", "0"),
        (r"[[\D]&&[\d٣]]", "٣", "5"),
        (r"[]\d]+", "]5", "٣"),
        (r"[^]\d]", "٣", "]"),
        (r"[[:alpha:]\d]", "5", "٣"),
        (r"[[:alpha:]-\d]", "-", "٣"),
        (r"[a-z-\d]+", "b-5", "٣"),
        (r"[a-\x7a-\d]+", "b-5", "٣"),
        (r"[\p{Lu}\d]+", "É5", "٣"),
        (r"[^\s\S]|a", "a", "é"),
        # What looks like a class and is none.
        (r"\\d", r"\d", "5"),
        (r"\\\d", r"\5", r"\d"),
        (r"[\\d]+", r"\d", "5"),
        (r"\[\d", "[5", "[٣"),
        (r"\(?\d\)", "5)", "٣)"),
        (r"(?P<a[0]>\d)[a]", "5a", "٣a"),
        # What asks for Unicode by name.
        (r"\p{Nd}", "٣", "a"),
        (r"(?u)\d[\d]", "٣٣", "a5"),
        (r"(?u:\d)\d", "٣5", "٣٣"),
        (r"(?:(?u)\d)\d", "٣5", "٣٣"),
        (r"(?-u:\d)\d", "55", "٣5"),
        # Where case does not count k is also the Kelvin sign, but for the classes.
        (r"(?i)\wk", "kK", "\u212ak"),
        (r"(?i)\W", "\u212a", "k"),
        (r"(?i:A\d)", "a5", "a٣"),
    ],
)
def test_the_syntax_around_a_class(regex: str, yes: str, no: str) -> None:
    assert takes(regex, yes)
    assert not takes(regex, no)


@pytest.mark.parametrize("regex", [r"[\d-a]", r"[+-\w]", r"[\d-\s]", r"[^.-\d]", r"[a[+-\S]]", "(?x)[\\d #\n - a]"])
def test_a_class_is_no_end_of_a_range(regex: str) -> None:
    with pytest.raises(RequestError, match="write the hyphen first, last or as") as refused:
        grammar_text(StructuredOutputsParams(regex=regex))
    assert refused.value.parameter == "structured_outputs"


@given(st.text(r"\dwDpPxuU{}()[]?:^-&~#ix<>P= a" + "\n", max_size=20))
def test_any_text_is_rewritten_or_refused_and_a_wrong_regex_stays_wrong(text: str) -> None:
    try:
        rewritten = with_ascii_classes(text)
    except RequestError:
        rewritten = "("
    if not is_regex(text):
        assert not is_regex(rewritten)


def is_regex(text: str) -> bool:
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(text))


def test_only_what_is_read_here_is_bounded() -> None:
    words = "|".join(["word"] * MAX_REWRITTEN_BYTES)
    assert with_ascii_classes(words) == words
    for long in (r"\d" + words, "(?isx)" + words, "(?s-i:(?x)" + words):
        with pytest.raises(RequestError, match="must be at most 65536 bytes, got 3276"):
            with_ascii_classes(long)
