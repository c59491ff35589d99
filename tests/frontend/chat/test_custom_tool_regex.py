"""A rewritten regex matches the JSON form of a text if and only if the regex matches the text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.frontend.chat.custom_tool_regex import escaped_regex, json_escaped
from tests.frontend.chat.regexes import REGEXES, TEXTS, accepts
from tests.tiers import cases


def written(text: str) -> str:
    return "".join(map(json_escaped, text))


@given(st.text())
def test_escaped_characters_are_a_json_string(text: str) -> None:
    assert json.loads(f'"{written(text)}"') == text


@settings(max_examples=cases(400))
@given(REGEXES, TEXTS, st.sampled_from(["", "i", "s", "is"]))
def test_the_json_form_of_a_text_matches_if_the_text_does(regex: str, text: str, flags: str) -> None:
    rewritten = f"start: /{escaped_regex(regex, flags)}/{flags}"
    assert accepts(rewritten, written(text)) == accepts(f"start: /{regex}/{flags}", text)


@pytest.mark.parametrize("regex", ["", "a+b{2,3}", "(?i:k|[a-f])", r"(?P<word>\w+)\d", r"\p{L}[ü-ÿ]"])
def test_a_regex_of_plain_characters_stays_as_it_is(regex: str) -> None:
    assert escaped_regex(regex, "") == regex


@pytest.mark.parametrize(
    ("regex", "flags", "what"),
    [
        ("a", "x", "flags 'x'"),
        ("(?x: a)", "", "flags of"),
        ("(?=a)", "", "group"),
        ("a$", "", "anchor"),
        (r"\bword", "", "escape"),
        (r"\p{Cc}", "", "escape"),
        ("a\\", "", "escape"),
        (r"\x{110000}", "", "character"),
        ("[a-z&&[^b]]", "", "class"),
        ("[^]", "", "class"),
        ("(?", "", "group"),
        ("[z-a]", "", "class"),
        ("[a", "", "class"),
        ("{a", "", "brace"),
    ],
)
def test_a_regex_that_cannot_be_rewritten_is_refused(regex: str, flags: str, what: str) -> None:
    with pytest.raises(RequestError, match=what) as error:
        escaped_regex(regex, flags)
    assert error.value.parameter == "tools"


@settings(max_examples=cases(200))
@given(st.text(st.sampled_from('a"/\\[]^-(?:){},.*+|&~<>$ \n=isuxpP01'), max_size=20))
def test_any_text_is_rewritten_or_refused(regex: str) -> None:
    parameter = None
    try:
        escaped_regex(regex, "")
    except RequestError as error:
        parameter = error.parameter
    assert parameter in (None, "tools")
