"""Grammars of inputs within a call: the JSON form of a text is accepted if and only if the text itself is."""

import json
from typing import Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import InputFormat
from pyllm.frontend.chat.custom_tool_grammar import input_schema, lark_regex
from pyllm.frontend.chat.grammar_rules import schema_rule
from pyllm.frontend.text.regex_classes import with_ascii_classes
from tests.frontend.chat.regexes import ALPHABET, REGEXES, TEXTS, accepts
from tests.tiers import cases

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
# Each rule is the one before twice.
DOUBLED = "\n".join([*(f"r{n}: r{n + 1} r{n + 1}" for n in range(30)), "start: r0", 'r30: "a"'])
LINES = [
    *("*** Begin Patch", "*** End Patch", "*** Update File: a.py", '*** Add File: ü \\ "q".py', "*** Delete File: b"),
    *("*** Move to: c", "@@", "@@ def f():", '+print("🙂\\n")', "-\told", " x", "", "stray", "*** End of File"),
]


def accepts_in_call(definition: str, text: str, syntax: Literal["lark", "regex"] = "lark") -> bool:
    """Whether the whole text may come as a call's input."""
    written = json.dumps({"input": text}, ensure_ascii=False).replace("\x7f", "\\u007f")
    return accepts(f"start: {schema_rule(input_schema(InputFormat(syntax, definition)), 'f')}", written)


@settings(max_examples=cases(100))
@given(REGEXES, TEXTS)
def test_a_regex_matches_the_json_form_of_what_it_matches(regex: str, text: str) -> None:
    check_same(accepts_in_call(f"start: /{regex}/", text), accepts(f"start: /{regex}/", text), text)


def check_same(in_call: bool, alone: bool, text: str) -> None:
    """Check that a text may come in a call if and only if it may come alone; classes lack U+0000 in calls."""
    assert in_call == alone or (alone and "\0" in text)


@settings(max_examples=cases(100))
@given(REGEXES, TEXTS)
def test_a_whole_input_may_follow_a_regex(regex: str, text: str) -> None:
    assume("/" not in regex)
    alone = accepts(f"start: /{with_ascii_classes(regex)}/", text)
    check_same(accepts_in_call(regex, text, "regex"), alone, text)


@pytest.mark.parametrize(
    ("regex", "text", "holds"),
    [
        ('[^"]{3}', 'a"b', False),
        ('[^"]{3}', "a/b", True),
        ('[^"a-z]{3}', '_7"', False),
        ('[^["]]', '"', False),
        ('[^["]]', "'", True),
        (r"[\x00-\x1f]", '"', False),
        (r"[\x00-\x1f]", "\\", False),
        (r"[\x00-\x1f]", "\n", True),
        (r"\d{2}", "12", True),
        (r"\d{2}", "\u0661\u0662", False),
        (r"[\w.]+", "a_9.", True),
        (r"[\w.]+", "\u00e4", False),
        (r"^a+$", "aa", True),
        (r"a\$", "a$", True),
        (r"a/b\/c", "a/b/c", True),
    ],
)
def test_what_a_regex_means_for_an_input(regex: str, text: str, holds: bool) -> None:
    assert accepts_in_call(regex, text, "regex") == holds


@settings(max_examples=cases(60))
@given(st.text(st.sampled_from(ALPHABET.replace("\0", "")), min_size=1, max_size=4), TEXTS, st.booleans())
def test_a_literal_is_itself(literal: str, text: str, ignores_case: bool) -> None:
    definition = f"start: {json.dumps(literal).replace(chr(127), 'u007f')}{'i' if ignores_case else ''}"
    assert accepts_in_call(definition, literal)
    assert accepts_in_call(definition, literal.upper()) == (ignores_case or literal == literal.upper())
    assert accepts_in_call(definition, text) == (text == literal)


@settings(max_examples=cases(200))
@given(st.lists(st.sampled_from(LINES), max_size=4), st.booleans())
def test_a_patch_is_accepted_in_a_call_if_it_is_one(lines: list[str], ends: bool) -> None:
    text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"]) + "\n" * ends
    assert accepts_in_call(PATCH, text) == accepts(PATCH, text)


def test_a_range_of_control_characters_has_no_others() -> None:
    definition = r'start: "\u0000".."\u001f"'
    assert [accepts_in_call(definition, text) for text in ("\n", "\x1f", '"', "\\", "a")] == [True, True, *[False] * 3]


def test_a_patch_of_every_kind_is_accepted() -> None:
    text = "\n".join([LINES[0], LINES[2], *LINES[5:11], LINES[13], LINES[3], "+", "+\t\\", LINES[4], LINES[1]])
    assert accepts(PATCH, text)
    assert accepts_in_call(PATCH, text)
    assert not accepts_in_call(PATCH, text + "x")


def test_all_parts_of_lark_that_can_be_written_so() -> None:
    definition = r"""
    # A comment with "quotes" and /slashes/
    ?start: [_sign] DIGIT~1..3 ("x".."z"){2} tail? // another
      | WS_INLINE KEY "\x22\x0a"
    _sign: "+" | "-" -> minus
    !tail: "\u000b" ESCAPED_STRING
    KEY: /[a-c\n]{1,2}/
    %import common.DIGIT
    %import common.WS_INLINE
    %import common.ESCAPED_STRING
    """
    for text in ("12xy", "-1zz", '+123xx\x0b"a\\"b\n"', '\t ab"\n', ' \nb"\n'):
        assert accepts_in_call(definition, text), text
    for text in ("1234xy", "12wx", "--1zz", '\t abc"\n', 'ab"\n', "12xy\x0b"):
        assert not accepts_in_call(definition, text), text


@pytest.mark.parametrize(
    ("definition", "what"),
    [
        ('start: "(" start ")" | "x"', "recursive"),
        ("start: a\na: b\nb: a", "recursive"),
        ('start: "a"\n%ignore " "', "%ignore"),
        ("start: <|end|>", "end"),
        ("start: @other", "@other"),
        ("start: T\nT: ~/a/", "'?~"),
        ("start: T\nT: /a/ & /b/", "'?&"),
        ("start: a", "the name a"),
        ('A: "a"', "the rule start"),
        ("start: X\n%import common.X", "import of X"),
        ('start: %json {"type": "object"}', "%json"),
        ('start: "a" }', "grammar }"),
        ('start: "a"{2', "grammar {"),
        ("start: /a/x", "regex flag x"),
        ('start: __x\n__x: "a"', "grammar __x"),
        ("start: /a/il", "regex flag l"),
        ('start: "a"\nstart: "b"', "second definition of start"),
        ('start: LF\n%import common.LF\nLF: "a"', "second definition of LF"),
        ('start: "a"\n  "b"', 'grammar "b", which is part of no rule'),
        ('start: ("a"\n)', r"grammar \), which is part of no rule"),
        ('"x"\nstart: "a"', 'grammar "x", which is part of no rule'),
        ('start: LF\n%import common.LF\n | "a"', r"grammar \|, which is part of no rule"),
        ("start: /a$b/", r"assertion \$"),
        ("start: /a^b/", r"assertion \^"),
        ("start: /^a/m", r"assertion \^"),
        (r"start: /\bfoo/", r"assertion \\b"),
        (r"start: /o\B/", r"assertion \\B"),
        ("start: /(?=a)b/", r"assertion \(\?="),
        ("start: /(?<!a)b/", r"assertion \(\?<!"),
        ("start: (", r"unclosed \("),
        ('start: "a" )', r"unopened \)"),
        ('start: ["a")', r"unopened \)"),
        ("start: /(a/ /b)/", r"unclosed \( in a regex"),
        ("start: /a)(b/", r"unopened \) in a regex"),
        ("start: /[a/", r"unclosed \[ in a regex"),
        ('start: "a"~3..2', r"repetition \{3,2\}"),
        ('start: "a"{3,2}', r"repetition \{3,2\}"),
        ("start: /a{3,2}/", r"repetition \{3,2\}"),
        (r"start: /a\x00/", r"U\+0000"),
        (r'start: "\u0000"', r"U\+0000"),
        ('start: "ab".."c"', "range"),
        pytest.param("start: /" + "." * 100_000 + "/", "100009 bytes", id="definition-too-long"),
        pytest.param(DOUBLED, "1048576 bytes", id="rules-become-too-long"),
        # These took seconds when an open literal was read again from each of its characters.
        pytest.param("start: /" + r"\/" * 32_000, "close it", id="open-regex"),
        pytest.param("start: /" + r"\"" * 32_000, "close it", id="open-regex-of-quotes"),
        pytest.param('start: "' + r"\"" * 32_000, "close it", id="open-string"),
        ('start: "a', "close it"),
        (r'start: "\q"', "escapes"),
    ],
)
def test_what_cannot_be_written_so_is_refused_by_name(definition: str, what: str) -> None:
    with pytest.raises(RequestError, match=what) as error:
        lark_regex(definition)
    assert error.value.parameter == "tools"


@pytest.mark.parametrize("regex", ["a^b", "a$b", r"\bfoo", "(?!a)b", "(a", "a)", "a{3,2}"])
def test_a_regex_that_no_call_can_follow_is_refused(regex: str) -> None:
    with pytest.raises(RequestError, match="in a custom tool's grammar"):
        input_schema(InputFormat("regex", regex))


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ('start: "b"\n\n // a comment\n | "a"', "a"),
        ('start: "b" /^a$/', "ba"),
        (r"start: /[$^(][^)^]\^\$[[:^alpha:]$]{2,3}/", "^(^$$$1"),
        ("start: /[]()][^]]/", ")["),
    ],
)
def test_what_is_like_a_refused_part_is_accepted(definition: str, text: str) -> None:
    assert accepts_in_call(definition, text)
    assert not accepts_in_call(definition, text + "#")


@settings(max_examples=cases(200))
@given(st.text(st.sampled_from('a"/\\[]^-(?:){},.*+|&~@<>%$ \n=idsuxpP01'), max_size=20))
def test_any_text_is_written_or_refused(definition: str) -> None:
    parameter = None
    try:
        lark_regex(definition)
    except RequestError as error:
        parameter = error.parameter
    assert parameter in (None, "tools")
