"""A program's conversations, and templates that refuse what the probes found."""

from typing import Any

import pytest

from pyllm.errors import RequestError, TemplateRefusalError
from pyllm.frontend.chat.renderer import ChatRenderer, program_messages
from pyllm.frontend.text.prompt_encoder import PromptEncoder
from pyllm.frontend.text.templates import ChatTemplate
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.fake_core import MODEL
from tests.frontend.chat.conversations import TOOL, system, user
from tests.frontend.chat.small_templates import SMALL_TEMPLATES

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
# It knows one effort, and refuses two systems only in conversations longer than the probes.
FUSSY = (
    "{% if reasoning_effort | default('low') != 'low' %}{{ raise_exception('no such effort') }}{% endif %}"
    "{% if messages | selectattr('role', 'equalto', 'system') | list | length > 1 and messages | length > 4 %}"
    "{{ raise_exception('too many') }}{% endif %}" + PLAIN
)


def renderer(tokenizer: Tokenizer, source: str, tool_call_parser: str = "auto") -> ChatRenderer:
    template = ChatTemplate(source, "", "")
    return ChatRenderer(PromptEncoder(tokenizer, MODEL), template, tool_call_parser)


async def rendered(tokenizer: Tokenizer, source: str, *messages: dict[str, Any], **options: Any) -> tuple[str, Any]:
    chat = renderer(tokenizer, source)
    return await chat.render(program_messages(messages), options.pop("tools", None), chat.template, **options)


async def test_a_program_may_leave_the_content_out(tokenizer: Tokenizer) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    for content in ({}, {"content": None}):
        text, adjusted = await rendered(
            tokenizer, PLAIN, user("q"), {"role": "assistant", "tool_calls": [call], **content}
        )
        assert text.endswith('assistant: <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n')
        assert adjusted == ("tool_calls",)


@pytest.mark.parametrize(
    ("arguments", "read"), [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), ("no JSON", {"INVALID_JSON": "no JSON"})]
)
def test_arguments_are_an_object_for_the_template(arguments: object, read: object) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (message,) = program_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == read


@pytest.mark.parametrize("function", [5, {}, {"name": "a"}, {"arguments": "{}"}])
def test_a_call_in_another_form_is_refused(function: object) -> None:
    for call in ({"function": function}, function):
        with pytest.raises(RequestError, match="OpenAI's form") as refused:
            program_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])
        assert refused.value.parameter == "messages"


async def test_an_effort_that_the_template_refuses_is_left_out_and_named(tokenizer: Tokenizer) -> None:
    ignored: list[str] = []
    options = {"ignore": lambda name, _: ignored.append(name)}
    for effort in ("low", "high"):
        text, _ = await rendered(tokenizer, FUSSY, user("q"), variables={"reasoning_effort": effort}, **options)
        assert text == "user: q\n"
    assert ignored == ["reasoning_effort"]


async def test_the_plainest_form_is_tried_where_a_template_refuses_what_its_probes_showed(tokenizer: Tokenizer) -> None:
    text, adjusted = await rendered(tokenizer, FUSSY, system("a"), system("b"), user("q"), user("r"), user("s"))
    assert text == "user: a\n\nb\n\nq\n\nr\n\ns\n"
    assert {"system", "two_systems", "two_users"} <= set(adjusted)
    with pytest.raises(TemplateRefusalError, match="never"):
        await rendered(tokenizer, "{{ raise_exception('never') }}", user("q"))


async def test_tools_of_an_unknown_form_are_explained(tokenizer: Tokenizer) -> None:
    chat = renderer(tokenizer, "{{ tools }}" + PLAIN)
    text, adjusted = await chat.render([user("q")], [TOOL], chat.template)
    assert chat.parsers.explains_tools
    assert adjusted == ("tools",)
    assert "<tool_call>" in text


async def test_no_list_of_tools_for_a_template_that_needs_one(tokenizer: Tokenizer) -> None:
    text, adjusted = await rendered(tokenizer, SMALL_TEMPLATES["tools_needed"].source, user("q"))
    assert text.startswith("<|user|>q")
    assert adjusted == ()
