"""Inputs of custom tools come out as they were, however their JSON is written and cut."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.custom_input import CustomInputs, InputDecoder
from pyllm.frontend.chat.parsers.parsed_pieces import Parser, Piece, ToolArguments, ToolCallBegin, folded
from pyllm.frontend.chat.parsers.parser_selection import tool_call_parser
from tests.tiers import cases

# Escapes of every kind, and pairs of surrogates, are likely.
INPUTS = st.text(st.sampled_from('a"\\/\n\t\x00\x1f\x7fü🙂\u2028'), max_size=12) | st.text(max_size=12)
CUTS = st.lists(st.integers(1, 5), max_size=40)


def cut(text: str, sizes: Iterable[int]) -> list[str]:
    parts = []
    for size in sizes:
        parts.append(text[:size])
        text = text[size:]
    return [part for part in [*parts, text] if part]


def parser() -> Parser:
    hermes = tool_call_parser("hermes")
    assert hermes is not None
    return CustomInputs(hermes, ["patch"])


def run(parts: Iterable[str]) -> list[Piece]:
    machine, pieces = parser(), list[Piece]()
    for part in parts:
        pieces += machine.feed(part)
    return pieces + machine.finish()


@settings(max_examples=cases(300))
@given(INPUTS, st.booleans(), CUTS)
def test_an_input_comes_back_and_every_cut_gives_the_same(text: str, ascii_only: bool, sizes: list[int]) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    decoder, one_by_one = InputDecoder(), InputDecoder()
    given_so_far, slowly = "", ""
    for part in cut(written, sizes):
        given_so_far += decoder.feed(part)
        slowly += "".join(map(one_by_one.feed, part))
        assert given_so_far == slowly
        assert text.startswith(given_so_far)
    assert given_so_far == text
    assert decoder.finish() == ""


@settings(max_examples=cases(100))
@given(st.lists(INPUTS, min_size=1, max_size=3), st.booleans(), CUTS)
def test_calls_of_custom_tools_have_their_input_and_others_their_arguments(
    inputs: list[str], ascii_only: bool, sizes: list[int]
) -> None:
    calls, expected = [], []
    for number, text in enumerate(inputs):
        name = "patch" if number % 2 == 0 else "f"
        arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
        calls.append(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')
        expected.append((name, text if name == "patch" else arguments, name == "patch"))
    whole = folded(run(cut("Hm.\n" + "\n".join(calls), sizes)))
    assert [(call.name, call.arguments, call.custom) for call in whole.tool_calls] == expected
    assert whole.content == "Hm."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\ud83d\\ude00b"}', "a😀b"),
        ('{"input": "\\ud83d"}', "\ufffd"),
        ('{"input": "\\ud83dx\\ude00\\ud83d\\ud83d\\ude00"}', "\ufffdx\ufffd\ufffd😀"),
        ('{"input": "a\\ud83d', "a\ufffd"),
        ('{"input": "a\\u00', "a"),
        ('{"input": "a", "more": "b"}', "a"),
        (' { "input" : "\\/\\b\\f\\r"}', "/\b\f\r"),
        ('{"input": "a", "mo', "a"),
        ('{"input": "say "hi", b"}}', 'say "hi", b"}}'),
        # Models that no grammar holds write other things.
        ('{"why": "so", "input": "a\\nb"}', "a\nb"),
        ('{"why": "so", "input": "\\ud83d"}', "\ufffd"),
        ('{"input": 3}', '{"input": 3}'),
        ('{"text": "a"}', '{"text": "a"}'),
        ("{}", "{}"),
        ('{"' + "x" * 80 + '": 1, "input": "a"}', "a"),
        ('{"why": ', '{"why": '),
    ],
)
def test_what_is_no_plain_input_is_made_the_best_of(arguments: str, text: str) -> None:
    for parts in ([arguments], list(arguments)):
        decoder = InputDecoder()
        assert "".join(map(decoder.feed, parts)) + decoder.finish() == text


def test_an_input_comes_as_it_is_written() -> None:
    machine = parser()
    assert machine.feed('<tool_call>\n{"name": "patch", "arguments": {"inp') == [ToolCallBegin(0, "patch", custom=True)]
    assert machine.feed('ut": "one\\') == [ToolArguments(0, "one")]
    assert machine.feed("n\\ud83d") == [ToolArguments(0, "\n")]
    assert machine.feed('\\ude00"}}\n</tool_call>') == [ToolArguments(0, "😀")]
    assert machine.finish() == []
