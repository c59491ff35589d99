"""Every machine over every text, cut in every way: what was given after each character is the same."""

import itertools
import json
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.drafted_calls import CallSyntax
from pyllm.frontend.chat.parsers.forced import FirstCall, ForcedCall, OnlyCalls
from pyllm.frontend.chat.parsers.parsed_pieces import (
    Content,
    ParsedText,
    Parser,
    Piece,
    PlainParser,
    Reasoning,
    ToolArguments,
    ToolCall,
    ToolCallBegin,
    folded,
)
from pyllm.frontend.chat.parsers.parser_selection import call_list_parser, calls_or_content_parser, tool_call_parser
from pyllm.frontend.chat.parsers.think import RawReasoning, ThinkParser
from tests.frontend.chat.parsers import texts
from tests.tiers import cases

MakeParser = Callable[[], Parser]


def hermes() -> Parser:
    parser = tool_call_parser("hermes")
    assert parser is not None
    return parser


def llama() -> Parser:
    parser = tool_call_parser("llama3_json", {"f": {}, "g": {}})
    assert parser is not None
    return parser


def mistral() -> Parser:
    parser = tool_call_parser("mistral")
    assert parser is not None
    return parser


def think() -> Parser:
    return ThinkParser(hermes(), opened=False)


def think_opened() -> Parser:
    return ThinkParser(hermes(), opened=True)


def think_unclosed() -> Parser:
    return ThinkParser(hermes(), opened=False, calls=CallSyntax(("<tool_call>",), hermes))


def raw_unclosed() -> Parser:
    return RawReasoning(hermes(), opened=True, calls=CallSyntax(("<tool_call>",), hermes))


def first_hermes() -> Parser:
    return FirstCall(hermes())


def only_calls() -> Parser:
    return OnlyCalls(call_list_parser())


def hermes_or_content() -> Parser:
    return calls_or_content_parser("hermes", [])


def mistral_or_content() -> Parser:
    return calls_or_content_parser("mistral", [])


def llama_or_content() -> Parser:
    return calls_or_content_parser("llama3_json", [])


def bare_llama_or_content() -> Parser:
    return calls_or_content_parser("llama3_json", ["f", "g"])


def forced() -> Parser:
    return ForcedCall("f")


CASES: list[tuple[MakeParser, texts.Case]] = [
    *((hermes, case) for case in texts.HERMES),
    *((llama, case) for case in texts.LLAMA),
    *((mistral, case) for case in texts.MISTRAL),
    *((call_list_parser, case) for case in texts.LIST),
    *((think, case) for case in texts.THINK),
    *((think_opened, case) for case in texts.OPENED),
    *((think_unclosed, case) for case in [*texts.THINK, *texts.UNCLOSED]),
    *((raw_unclosed, case) for case in texts.RAW),
    *((PlainParser, texts.case(text, text)) for text in texts.PLAIN),
    *((hermes_or_content, case) for case in texts.HERMES_OR_CONTENT),
    *((mistral_or_content, case) for case in texts.MISTRAL_OR_CONTENT),
    *((llama_or_content, case) for case in texts.LLAMA_OR_CONTENT),
    *((bare_llama_or_content, case) for case in texts.BARE_LLAMA_OR_CONTENT),
    (forced, texts.case('{"a": 1}', "", ("f", '{"a": 1}'))),
    (forced, texts.case("")),
    (only_calls, texts.case('[{"name": "f', "")),
    (only_calls, texts.case('[{"name": "f", "parameters": {}}, {"na', "", ("f", "{}"))),
    (
        first_hermes,
        texts.case('a<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>b', "ab", ("f", "{}")),
    ),
]
MACHINES = [
    *(hermes, llama, mistral, call_list_parser, think, think_opened, forced, only_calls, first_hermes),
    *(think_unclosed, raw_unclosed),
    *(hermes_or_content, mistral_or_content, llama_or_content, bare_llama_or_content),
]

# What machines look at, in pieces that make lookalikes likely.
MARKERS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool"]
JSON = ['{"name": "f"', ', "arguments": {', '"parameters": {}', "}}", "true", "\\u00e9", "🙂"]
FRAGMENTS = st.sampled_from([*'{}[]",:; \n\\<>ax1-', *MARKERS, *JSON])


def run(make_parser: MakeParser, parts: Iterable[str]) -> list[Piece]:
    parser = make_parser()
    return [*itertools.chain.from_iterable(map(parser.feed, parts)), *parser.finish()]


def given_after_each(make_parser: MakeParser, parts: Iterable[str]) -> dict[int, ParsedText]:
    """What a machine has given after some numbers of characters."""
    parser, pieces, length, after = make_parser(), list[Piece](), 0, dict[int, ParsedText]()
    for part in parts:
        pieces += parser.feed(part)
        length += len(part)
        after[length] = folded(pieces)
    return after


@pytest.mark.parametrize(("make_parser", "case"), CASES)
def test_a_text_is_what_it_is_made_of(make_parser: MakeParser, case: texts.Case) -> None:
    assert folded(run(make_parser, [case.text])) == case.whole


@pytest.mark.parametrize(("make_parser", "case"), CASES)
def test_no_cut_changes_anything(make_parser: MakeParser, case: texts.Case) -> None:
    text = case.text
    one_by_one = given_after_each(make_parser, text)
    assert folded(run(make_parser, text)) == case.whole
    for place in range(len(text) + 1):
        parts = [text[:place], text[place:]]
        assert folded(run(make_parser, parts)) == case.whole, parts
        after = given_after_each(make_parser, [part for part in parts if part])
        assert after.items() <= one_by_one.items(), parts


@settings(max_examples=cases(400))
@given(st.sampled_from(MACHINES), st.lists(st.lists(FRAGMENTS, max_size=6).map("".join), max_size=12))
def test_no_cuts_of_any_text_change_anything(make_parser: MakeParser, parts: list[str]) -> None:
    parts = [part for part in parts if part]
    text = "".join(parts)
    assert given_after_each(make_parser, parts).items() <= given_after_each(make_parser, text).items()
    assert folded(run(make_parser, parts)) == folded(run(make_parser, text)) == folded(run(make_parser, [text]))


@settings(max_examples=cases(200))
@given(st.sampled_from([hermes, llama, mistral]), st.lists(FRAGMENTS, max_size=40).map("".join))
def test_what_holds_no_call_is_content_to_the_last_character(make_parser: MakeParser, text: str) -> None:
    whole = folded(run(make_parser, [text]))
    if not whole.tool_calls:
        assert whole.content == text


@settings(max_examples=cases(60))
@given(st.lists(st.sampled_from(["x", " ", "\n", "{", '"']), max_size=4).map("".join), st.data())
def test_any_call_comes_back_byte_for_byte(before: str, data: st.DataObject) -> None:
    values = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    )  # fmt: skip
    arguments = data.draw(st.dictionaries(st.text(max_size=4), values, max_size=3))
    written = json.dumps(arguments, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    text = f'{before}<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    whole = folded(run(hermes, [text]))
    assert whole == ParsedText(before.rstrip(), "", [ToolCall("f", written)])
    assert json.loads(whole.tool_calls[0].arguments) == arguments


def test_pieces_come_as_soon_as_they_are_known() -> None:
    parser = hermes()
    assert parser.feed("Hi ") == [Content("Hi")]
    assert parser.feed("there<tool") == [Content(" there")]
    assert parser.feed('_call>{"name": "f"') == []
    assert parser.feed(', "arguments": {"a') == [ToolCallBegin(0, "f"), ToolArguments(0, '{"a')]
    assert parser.feed('": 1}') == [ToolArguments(0, '": 1}')]
    assert parser.feed("}</tool_call>") == []
    assert parser.finish() == []


def test_reasoning_comes_as_it_is_thought() -> None:
    parser = ThinkParser(PlainParser(), opened=False)
    assert parser.feed("<think>\n") == []
    assert parser.feed("So ") == [Reasoning("So")]
    assert parser.feed("it </th") == [Reasoning(" it")]
    assert parser.reasoning_end is None
    assert parser.feed("ink>\nYes") == [Content("Yes")]
    assert parser.reasoning_end == len("<think>\nSo it </think>")
