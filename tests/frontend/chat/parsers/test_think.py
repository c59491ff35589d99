"""Reasoning is split off or stays in the content as it was written, and calls after it are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.chat.parsers.harmony import HarmonyParser
from pyllm.frontend.chat.parsers.parsed_pieces import ParsedText, Parser, Piece, PlainParser, ToolCall, folded
from pyllm.frontend.chat.parsers.parser_selection import tool_call_parser
from pyllm.frontend.chat.parsers.reasoning_parsers import HARMONY, REASONING_FORMS
from pyllm.frontend.chat.parsers.think import RawReasoning, ThinkParser, make_reasoner
from tests.frontend.chat.parsers import texts

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def run(parser: Parser, text: str, sizes: list[int]) -> ParsedText:
    pieces: list[Piece] = []
    for size in sizes:
        pieces += parser.feed(text[:size])
        text = text[size:]
    return folded([*pieces, *parser.feed(text), *parser.finish()])


@given(
    space=st.text(st.sampled_from(" \n\u2028"), max_size=12),
    case=st.sampled_from([*texts.THINK, *texts.OPENED]),
    sizes=st.lists(st.integers(0, 9)),
    opened=st.booleans(),
)
def test_the_content_is_the_text(space: str, case: texts.Case, sizes: list[int], opened: bool) -> None:
    text = space + case.text
    assert run(RawReasoning(PlainParser(), opened), text, sizes) == ParsedText(text)


@given(st.text(st.sampled_from(" \n"), max_size=12), st.lists(st.integers(0, 3)))
def test_whitespace_before_a_text_without_reasoning_is_content(space: str, sizes: list[int]) -> None:
    for text in (space, f"{space}<thin air", f"{space}x <think>y</think>"):
        assert run(ThinkParser(PlainParser(), False), text, sizes) == ParsedText(text)
    for text in (f"{space}<think>x</think>y", f"{space}<think> x </think> y"):
        assert run(ThinkParser(PlainParser(), False), text, sizes) == ParsedText("y", "x")


@given(st.lists(st.integers(0, 9)), st.sampled_from(["<think>I may call.</think>", "", " <think></think>\n\n"]))
def test_a_call_behind_reasoning_is_found_and_one_within_is_none(sizes: list[int], reasoning: str) -> None:
    parser = tool_call_parser("hermes")
    assert parser is not None
    parsed = run(RawReasoning(parser, False), reasoning.replace("may call", CALL) + CALL, sizes)
    assert parsed.tool_calls == [ToolCall("f", '{"a": 1}')]
    assert parsed.content.strip() == reasoning.replace("may call", CALL).strip()


@pytest.mark.parametrize("name", sorted(REASONING_FORMS.keys() - {"openai_gptoss"}))
def test_each_form_splits_reasoning_at_its_markers(name: str) -> None:
    form = REASONING_FORMS[name]
    for opening in form.openings:
        for closing in form.closings:
            text = f"{opening}\nWell <x {closing[:-1]}!\n{closing}\n\nYes {opening}"
            reasoning = f"Well <x {closing[:-1]}!"
            for sizes in ([], [1] * len(text), [3] * len(text)):
                machine = make_reasoner(form, PlainParser(), False, True)
                assert run(machine, text, sizes) == ParsedText(f"Yes {opening}", reasoning)
                assert machine.reasoning_end == len(text) - len(f"\n\nYes {opening}")
                opened = make_reasoner(form, PlainParser(), True, True)
                assert run(opened, text.removeprefix(opening), sizes) == ParsedText(f"Yes {opening}", reasoning)
                assert run(make_reasoner(form, PlainParser(), False, False), text, sizes) == ParsedText(text)
    assert run(make_reasoner(form, PlainParser(), False, True), "Yes", []) == ParsedText("Yes")


def test_harmonys_reasoning_is_counted_to_the_end_of_its_message() -> None:
    thought = "<|channel|>analysis<|message|>I think.<|end|>"
    text = f"{thought}<|start|>assistant<|channel|>final<|message|>Yes"
    for sizes in ([], [1] * len(text)):
        machine = make_reasoner(HARMONY, HarmonyParser(), False, True)
        assert run(machine, text, sizes) == ParsedText("Yes", "I think.")
        assert machine.reasoning_end == len(thought)
        whole = run(make_reasoner(HARMONY, HarmonyParser(), False, False), text, sizes)
        assert whole == ParsedText("I think.\n\nYes")
    machine = make_reasoner(HARMONY, HarmonyParser(), False, True)
    assert run(machine, "<|channel|>final<|message|>Yes", []) == ParsedText("Yes")
    assert machine.reasoning_end == 0
    cut = make_reasoner(HARMONY, HarmonyParser(), False, True)
    assert run(cut, "<|channel|>analysis<|message|>I th", []) == ParsedText("", "I th")
    assert cut.reasoning_end is None
