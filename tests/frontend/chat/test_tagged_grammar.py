"""Calls in tags follow their grammar, compiled as a worker would, and the parser reads back what the grammar writes."""

from typing import Any

import pytest

from pyllm.frontend.chat.parsers.parsed_pieces import ToolCall, folded
from pyllm.frontend.chat.parsers.parser_selection import tool_call_parser
from pyllm.frontend.chat.tool_grammar import Content, calls_in_text, calls_or_content
from tests.frontend.chat.test_tool_grammar import Vocabulary

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"$ref": "#/$defs/days"},
    },
    "required": ["city"],
    "$defs": {"days": {"type": "integer", "maximum": 9}},
}
TOOLS: list[tuple[str, dict[str, Any] | str]] = [
    ("weather", SCHEMA),
    ("we", {"type": "object", "properties": {}, "additionalProperties": False}),
    ("free", {"type": "object"}),
]
# A call with one argument and a value, one without, and one with three.
WRITTEN = {
    "qwen3_coder": (
        "<tool_call>\n<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=we>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    "glm45": (
        "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
        "<tool_call>we\n</tool_call>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n<arg_key>unit</arg_key>\n"
        "<arg_value>C</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="{name}">\n<parameter name="{key}">{value}</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="we">\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Bonn</parameter>\n'
        '<parameter name="unit">C</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
}


@pytest.fixture(scope="module", params=["plain", "added", "special"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary(request.param)


def read(kind: str, text: str) -> list[ToolCall]:
    parser = tool_call_parser(kind, {name: schema for name, schema in TOOLS if isinstance(schema, dict)})
    assert parser is not None
    return folded([*parser.feed(text), *parser.finish()]).tool_calls


@pytest.mark.parametrize("kind", WRITTEN)
def test_calls_in_tags_follow_their_schema(vocabulary: Vocabulary, kind: str) -> None:
    def accepts(text: str) -> bool:
        return vocabulary.accepts(calls_in_text(kind, TOOLS, True, vocabulary.token_id), text)

    one, none, several = WRITTEN[kind]
    call = one.format(name="weather", key="city", value="Rome, or\nBonn <b> 🙂")
    assert accepts(call)
    assert accepts(f"So: {call}\n{none} and {several}")
    assert accepts("Hello < you")
    assert accepts(one.format(name="free", key="any", value="thing"))
    assert not accepts(one.format(name="clock", key="city", value="x"))
    assert not accepts(one.format(name="weather", key="unit", value="C"))
    assert not accepts(several.replace("3", "30"))
    assert not accepts(several.replace("C<", "K<").replace("\nC\n", "\nK\n"))
    assert not accepts(none.replace("we", "weather"))
    assert not accepts(call[:-3])
    assert read(kind, call) == [ToolCall("weather", '{"city": "Rome, or\\nBonn <b> 🙂"}')]
    assert read(kind, several) == [ToolCall("weather", '{"city": "Bonn", "unit": "C", "days": 3}')]
    assert read(kind, none) == [ToolCall("we", "{}")]


@pytest.mark.parametrize("kind", WRITTEN)
def test_an_answer_is_calls_in_tags_or_content(vocabulary: Vocabulary, kind: str) -> None:
    def accepts(text: str, parallel: bool = True) -> bool:
        content = Content('start: "yes" | "no"', False)
        return vocabulary.accepts(calls_or_content(kind, TOOLS, parallel, content, vocabulary.token_id), text)

    _, none, several = WRITTEN[kind]
    for text in ("yes", none, several):
        assert accepts(text)
    assert accepts(f"{none}\n{several}")
    for text in (f"{none} yes", f"yes{none}", "maybe", ""):
        assert not accepts(text)
    assert not accepts(f"{none}\n{several}", parallel=False)
