"""Closing braces and brackets that are too many or missing, in each form of calls in JSON: no call is lost."""

from functools import partial
from typing import NamedTuple

import pytest

from pyllm.frontend.chat.parsers.header_calls import DEEPSEEK_OPENING, DEEPSEEK_V3, DEEPSEEK_V31, KIMI, HeaderTags
from pyllm.frontend.chat.parsers.parsed_pieces import ParsedText, ToolCall, folded
from pyllm.frontend.chat.parsers.tool_parsers import TOOL_FORMS
from tests.frontend.chat.parsers.test_parsers import given_after_each, run
from tests.frontend.chat.parsers.test_tool_parsers import make


class Shape(NamedTuple):
    """The text around two calls, and the calls; `%s` stands for the arguments."""

    opening: str
    f: str
    between: str
    g: str
    closing: str


def list_of(opening: str, closing: str, name: str = "name", arguments: str = "arguments") -> Shape:
    f, g = (f'{{"{name}": "{function}", "{arguments}": %s}}' for function in "fg")
    return Shape(f"{opening}[", f, ", ", g, f"]{closing}")


def row_of(opening: str, between: str, closing: str) -> Shape:
    f, g = (f'{{"name": "{function}", "parameters": %s}}' for function in "fg")
    return Shape(opening, f, between, g, closing)


def headers(tags: HeaderTags, opening: str) -> Shape:
    f, g = (f"{tags.begin}{function}{tags.before_arguments}%s{tags.end}" for function in "fg")
    return Shape(opening, f, "\n", g, tags.closing)


SHAPES = {
    "hermes": row_of("<tool_call>\n", "\n", "\n</tool_call>"),
    "minimax": row_of("<tool_calls>\n", "\n", "\n</tool_calls>"),
    "llama3_json": row_of("", "; ", ""),
    "nemotron_json": list_of("<TOOLCALL>", "</TOOLCALL>"),
    "apriel": list_of("<tool_calls>", "</tool_calls>"),
    "granite": list_of("<|tool_call|>", ""),
    "phi4_mini_json": list_of("functools", ""),
    "cohere_command3": list_of("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters"),
    "lfm2": list_of("<|tool_call_start|>", "<|tool_call_end|>"),
    "apertus": Shape("<|tools_prefix|>[", '{"f": %s}', ", ", '{"g": %s}', "]<|tools_suffix|>"),
    "mistral": Shape("", "[TOOL_CALLS]f%s", "", "[TOOL_CALLS]g%s", ""),
    "gigachat3": Shape(
        "", 'function call<|role_sep|>{"name": "f", "arguments": %s}', "<|message_sep|>\n\n",
        'function call<|role_sep|>{"name": "g", "arguments": %s}', "<|message_sep|>",
    ),
    "kimi_k2": headers(KIMI, "<|tool_calls_section_begin|>"),
    "deepseek_v31": headers(DEEPSEEK_V31, DEEPSEEK_OPENING),
    "deepseek_v3": headers(DEEPSEEK_V3, DEEPSEEK_OPENING),
    "functionary_v3_1": Shape("", "<function=f>%s</function>", "", "<function=g>%s</function>", ""),
    "openai": Shape(
        "", "<|channel|>commentary to=functions.f<|message|>%s<|call|>", "<|start|>assistant",
        "<|channel|>commentary to=functions.g<|message|>%s<|call|>", "",
    ),
}  # fmt: skip
F, G = '{"a": {"b": "c"}}', '{"d": [1]}'
F_AND_G = ParsedText("", "", [ToolCall("f", F), ToolCall("g", G)])


def whole(name: str, text: str) -> ParsedText:
    """What a text is made of, however it is cut."""
    machine = partial(make, name)
    found, one_by_one = folded(run(machine, [text])), given_after_each(machine, text)
    for place in range(1, len(text)):
        parts = [text[:place], text[place:]]
        assert folded(run(machine, parts)) == found, parts
        assert given_after_each(machine, parts).items() <= one_by_one.items(), parts
    return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("slip", ["", "}", "}}", "]", "]}", "\n}\n"])
def test_one_closing_brace_too_many_loses_nothing(name: str, slip: str) -> None:
    opening, f, between, g, closing = SHAPES[name]
    assert whole(name, opening + f % (F + slip) + between + g % G + closing) == F_AND_G
    assert whole(name, opening + f % F + between + g % (G + slip) + closing) == F_AND_G


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"llama3_json", "mistral"}))
def test_one_closing_brace_too_few_is_added(name: str) -> None:
    opening, f, between, g, closing = SHAPES[name]
    assert mended(whole(name, opening + f % F + between + g % G[:-1] + closing)) == F_AND_G
    assert mended(whole(name, opening + f % F[:-1] + between + g % G + closing)) == F_AND_G


@pytest.mark.parametrize(
    "name", sorted(name for name, shape in SHAPES.items() if shape.f.endswith("}") and name != "llama3_json")
)
def test_all_closing_braces_of_the_last_call_are_added(name: str) -> None:
    opening, f, _, _, closing = SHAPES[name]
    assert mended(whole(name, opening + (f % F)[:-3] + closing)) == ParsedText("", "", [ToolCall("f", F)])


def test_a_call_that_is_cut_off_is_not_closed() -> None:
    for name, shape in SHAPES.items():
        (call,) = whole(name, (shape.opening + shape.f % "\0").partition("\0")[0] + F[:-1]).tool_calls
        assert call.arguments == F[:-1]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("broken", ["oops}", "{{}}", "1, }", '"x" y}', "[1}"])
def test_no_marker_is_content_after_a_break(name: str, broken: str) -> None:
    opening, f, between, g, closing = SHAPES[name]
    for text in (
        opening + f % f'{{"a": {broken}' + closing,
        opening + f % F + between + g % f'{{"a": {broken}' + closing,
    ):
        found = whole(name, text)
        assert not found.content
        assert found.tool_calls[0].name == "f"
        assert not any(mark in call.arguments for call in found.tool_calls for mark in TOOL_FORMS[name].markers)


def mended(found: ParsedText) -> ParsedText:
    """Without the space in front of what was added."""
    for call in found.tool_calls:
        call.arguments = call.arguments.replace("\n}", "}")
    return found
