"""Tools in words: only where the template leaves them out, and whatever the messages are."""

import json
from typing import Any

import pytest

from pyllm.errors import RequestError
from pyllm.frontend.chat.message_shapes import shaped_for_program
from pyllm.frontend.text.templates import ChatTemplate

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ASKED: list[Any] = [{"role": "user", "content": "x"}]
PLAIN = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", "", "")
WITH_TOOLS = ChatTemplate("{{ tools }}", "", "")


def test_a_template_that_leaves_tools_out_gets_them_in_words() -> None:
    (system, question), tools, adjusted = shaped_for_program(ASKED, [TOOL], PLAIN)
    assert (tools, adjusted) == (None, ("tools",))
    assert system["role"] == "system"
    assert json.dumps(TOOL) in system["content"]
    assert question == ASKED[0]


@pytest.mark.parametrize(("tools", "template"), [([TOOL], WITH_TOOLS), ([], PLAIN), (None, PLAIN), ([TOOL], None)])
def test_else_nothing_changes(tools: list[dict[str, Any]] | None, template: ChatTemplate | None) -> None:
    assert shaped_for_program(ASKED, tools, template).messages == ASKED


@pytest.mark.parametrize("call", [5, {}, {"function": 5}, {"function": {"name": "a"}}])
def test_a_call_in_another_form_is_refused(call: object) -> None:
    with pytest.raises(RequestError, match="OpenAI's form") as refused:
        shaped_for_program([{"role": "assistant", "content": "", "tool_calls": [call]}], [TOOL], PLAIN)
    assert refused.value.parameter == "messages"


def test_a_tool_that_is_no_json_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    with pytest.raises(RequestError, match="tools cannot be written as JSON"):
        shaped_for_program(ASKED, [loop], PLAIN)
    with pytest.raises(RequestError):
        shaped_for_program(ASKED, [{"type": object()}], PLAIN)


@pytest.mark.parametrize(
    ("arguments", "written"),
    [({"a": 1}, '{"a": 1}'), ('{"a": 1}', '{"a": 1}'), ("no JSON", '{"INVALID_JSON": "no JSON"}')],
)
def test_arguments_are_an_object_for_the_model_whether_they_come_as_one_or_as_text(
    arguments: object, written: str
) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (_, answer), _, _ = shaped_for_program([{"role": "assistant", "content": "", "tool_calls": [call]}], [TOOL], PLAIN)
    assert f'{{"name": "f", "arguments": {written}}}' in answer["content"]
