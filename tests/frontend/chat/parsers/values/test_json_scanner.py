"""The scanner agrees with Python's own decoder, wherever the text is cut, but for what it mends."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.values.json_scanner import JsonScanner
from tests.tiers import cases

VALUES = [
    '{"a": [1, {}, [], "x", null]}',
    '"\\u00e9\\n\\"🙂"',
    "-0.5e-7",
    "0",
    "[0, 10, -1E5]",
    " true ",
    '{"": false}',
]
BROKEN = [
    "-",
    "1.",
    "1e",
    "[1,,]",
    "[,]",
    "{,}",
    "nul ",
    "[1 2]",
    "{1:2}",
    "'a'",
    "[}",
]


MENDED = [
    ('"a\tb\x01\n"', '"a\\tb\\u0001\\n"'),
    ('"C:\\path\\dir \\d+ \\u12g4 \\u"', '"C:\\\\path\\\\dir \\\\d+ \\\\u12g4 \\\\u"'),
    ('"\\\n"', '"\\\\\\n"'),
    ('{"\\.": 1}', '{"\\\\.": 1}'),
    ("[1, ]", "[1 ]"),
    ('{"a":[{},],\n}', '{"a":[{}]\n}'),
]


def read(parts: Iterable[str]) -> tuple[JsonScanner, str, str]:
    """The scanner, what it has read of a text, and what is left of that."""
    scanner, given, rest = JsonScanner(), "", ""
    for part in parts:
        known, end = scanner.read(part)
        given, rest = given + known, rest + part[end:]
    return scanner, given + scanner.rest(), rest


def python_accepts(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("text", VALUES)
def test_values_end_where_they_end(text: str) -> None:
    for cut in range(len(text)):
        scanner = JsonScanner()
        assert scanner.read(text[:cut])[1] == cut
        rest = text[cut:] + ", more"
        _, end = scanner.read(rest)
        assert (scanner.done, scanner.broken) == (True, False)
        assert rest[end:].strip() == ", more"


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_json_breaks(text: str) -> None:
    scanner = JsonScanner()
    scanner.read(text + " ")
    assert scanner.broken
    assert not python_accepts(text)


@pytest.mark.parametrize(("text", "mended"), MENDED)
def test_what_can_be_mended_is_json(text: str, mended: str) -> None:
    for parts in ([text], text):
        scanner, given, rest = read(parts)
        assert (scanner.done, given, rest) == (True, mended, "")
    assert python_accepts(mended)


PARTS = st.lists(st.sampled_from([*'{}[],:"\\ -+.0159eEtfnu\n\x01', "true", '"a"', "null", "1,", '"a":']), max_size=12)


@settings(max_examples=cases(600))
@given(PARTS)
def test_it_reads_what_python_accepts_unchanged_and_mends_the_rest_or_breaks(parts: list[str]) -> None:
    text = "".join(parts) + " "  # The blank ends a number.
    scanner, given, rest = read([text])
    slow, given_slowly, left = read(text)
    assert (scanner.done, scanner.broken, given, rest) == (slow.done, slow.broken, given_slowly, left)
    if python_accepts(text):
        assert scanner.done
        assert given + rest == text
    elif scanner.done:
        assert rest.strip() or given != text
    if scanner.done:
        assert python_accepts(given)
