"""The scanner agrees with Python's own decoder, wherever the text is cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.values.json_scanner import JsonScanner

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
    '"\x01"',
    '"\\x"',
    '"\\u12g4"',
    "[1,]",
    '{"a":1,}',
    "{,}",
    "nul ",
    "[1 2]",
    "{1:2}",
    "'a'",
    "[}",
]


def accepts(text: str) -> bool:
    scanner = JsonScanner()
    # The blank ends a number.
    end = scanner.scan(text + " ")
    return scanner.done and not (text + " ")[end:].strip()


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
        assert scanner.scan(text[:cut]) == cut
        rest = text[cut:] + ", more"
        end = scanner.scan(rest)
        assert (scanner.done, scanner.broken) == (True, False)
        assert rest[end:].strip() == ", more"


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_json_breaks(text: str) -> None:
    scanner = JsonScanner()
    scanner.scan(text + " ")
    assert scanner.broken
    assert not python_accepts(text)


@settings(max_examples=500)
@given(st.lists(st.sampled_from([*'{}[],:"\\ -+.0159eEtfnu\n\x01', "true", '"a"', "null"]), max_size=12).map("".join))
def test_it_accepts_what_python_accepts(text: str) -> None:
    assert accepts(text) == python_accepts(text)
