"""The grammar that tools and a format give an answer, and that the parser tells calls from content as it does."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import Conversation, InputFormat, NamedTool, Tool, ToolChoice
from pyllm.frontend.chat.custom_tool_grammar import MAX_DEFINITION_BYTES
from pyllm.frontend.chat.parsers.parsed_pieces import ParsedText, ToolCall, folded
from pyllm.frontend.chat.parsers.tool_parsers import TOOL_FORMS
from pyllm.frontend.chat.tool_constraint import ToolConstraint
from pyllm.frontend.text.structured_outputs import grammar_text
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from tests.tiers import cases

BYTES = LLTokenizer("byte")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}

KEYS = st.sampled_from(["name", "parameters", "arguments", "city"])
VALUES = st.sampled_from(
    [{}, {"type": "string"}, {"type": "object"}, {"const": "f"}, {"$ref": "#"}, {"enum": ["f", 1]}]
)
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", ["object", "null"]]),
        "properties": st.dictionaries(KEYS, VALUES, max_size=3),
        "required": st.lists(KEYS, max_size=2, unique=True),
        "additionalProperties": st.sampled_from([False, True, {"type": "object"}]),
        "anyOf": st.just([{"type": "object"}]),
        "x-guidance": st.just({"whitespace_flexible": True}),
    },
)


def form_of(content: StructuredOutputsParams | None, strict: bool, kind: str) -> ToolConstraint:
    tool = Tool(name="f", parameters=CITY if strict else None, strict=strict)
    return ToolConstraint(Conversation(messages=[], tools=(tool,)), content, kind)


def matcher(form: StructuredOutputsParams | None) -> LLMatcher:
    assert form is not None
    return LLMatcher(BYTES, grammar_text(form), log_level=0)


def accepts(form: StructuredOutputsParams | None, text: str) -> bool:
    """Whether the whole text may come, and end."""
    grammar, data = matcher(form), list(text.encode())
    return grammar.try_consume_tokens(data) == len(data) and grammar.is_accepting()


def parsed(form: ToolConstraint, text: str) -> ParsedText:
    parser = form.parser()
    assert parser is not None
    return folded([*parser.feed(text), *parser.finish()])


@settings(max_examples=cases(300))
@given(SCHEMAS)
def test_content_never_begins_as_a_call_that_needs_no_marker(schema: dict[str, Any]) -> None:
    content = StructuredOutputsParams(json=schema)
    form = form_of(content, True, "llama3_json")
    grammar = matcher(content)
    if grammar.is_error():
        return  # A schema that nothing fits, which a worker refuses.
    assert matcher(form.constraint(lambda text: None)).try_consume_tokens(list(b"<|python_tag|>")) == 14
    text = '{"name": "f", "parameters": {"city": "Rome"}}'
    whole = parsed(form, text)
    if whole.tool_calls:
        assert accepts(form.constraint(lambda text: None), text)
        begins = list(b'{"name": "f", "parameters": {')
        assert grammar.try_consume_tokens(begins) < len(begins)
    else:
        assert whole.content == text
        assert accepts(form.constraint(lambda text: None), text) == accepts(content, text)


@pytest.mark.parametrize(
    ("schema", "is_bare"),
    [
        ({**CITY, "properties": {"name": {}, "age": {}}, "required": []}, True),
        ({"type": "object", "properties": {"answer": {}}, "required": ["answer"]}, True),
        (json.dumps(CITY), True),
        ({"type": "object", "properties": {"answer": {}}}, False),
        ({"type": "object"}, False),
        ({"anyOf": [CITY]}, False),
        ({**CITY, "properties": {"name": {}, "parameters": {}}}, False),
        ({**CITY, "required": 3}, False),
        ("{", False),
    ],
)
def test_a_strict_call_needs_the_marker_where_content_may_look_like_it(schema: Any, is_bare: bool) -> None:
    text = '{"name": "f", "parameters": {"city": "Rome"}}'
    form = form_of(StructuredOutputsParams(json=schema), True, "llama3_json")
    assert bool(parsed(form, text).tool_calls) == is_bare
    assert parsed(form, f"<|python_tag|>{text}").tool_calls == [ToolCall("f", '{"city": "Rome"}')]


def test_the_parser_goes_by_the_schema_that_the_grammar_was_made_of() -> None:
    schema: dict[str, Any] = dict(CITY)
    form = form_of(StructuredOutputsParams(json=schema), True, "llama3_json")
    assert form.constraint(lambda text: None) is not None
    schema.clear()
    for _ in range(2):
        assert parsed(form, '{"name": "f", "parameters": {"city": "Rome"}}').tool_calls


@pytest.mark.parametrize(
    ("content", "is_bare"),
    [
        (StructuredOutputsParams(choice=["a", "b"]), True),
        (StructuredOutputsParams(choice=["a", "{}"]), False),
        (StructuredOutputsParams(regex="a"), False),
    ],
)
def test_a_call_needs_it_only_beside_texts_that_may_begin_as_it_does(
    content: StructuredOutputsParams, is_bare: bool
) -> None:
    text = '{"name": "f", "parameters": {}}'
    form = form_of(content, False, "llama3_json")
    assert bool(parsed(form, text).tool_calls) == is_bare
    assert accepts(form.constraint(lambda text: None), text) == is_bare


def test_content_that_reads_as_a_call_is_one() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    form = form_of(StructuredOutputsParams(choice=[call, "<tool_call> and so on"]), True, "hermes")
    assert parsed(form, call).tool_calls == [ToolCall("f", "{}")]
    assert parsed(form, "<tool_call> and so on") == ParsedText("<tool_call> and so on")


def lark_tools(*sizes: int) -> tuple[Tool, ...]:
    """Custom tools whose definitions have these numbers of bytes."""
    formats = [InputFormat("lark", 'start: "a"' + " " * (size - 10)) for size in sizes]
    return tuple(Tool(name=f"f{index}", input_format=input_format) for index, input_format in enumerate(formats))


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_definitions_of_a_request_are_limited_together(choice: ToolChoice) -> None:
    half = MAX_DEFINITION_BYTES // 2
    for tools, fits in ((lark_tools(half, half), True), (lark_tools(half, half, 10), False)):
        form = ToolConstraint(Conversation(messages=[], tools=tools, tool_choice=choice), None, "hermes")
        if fits:
            assert not matcher(form.constraint(lambda text: None)).is_error()
            continue
        with pytest.raises(RequestError, match=f"{MAX_DEFINITION_BYTES + 10} bytes") as error:
            form.constraint(lambda text: None)
        assert error.value.parameter == "tools"


def test_the_definition_of_a_forced_tool_stands_alone() -> None:
    tools = lark_tools(MAX_DEFINITION_BYTES, MAX_DEFINITION_BYTES)
    form = ToolConstraint(Conversation(messages=[], tools=tools, tool_choice=NamedTool("f1")), None, "hermes")
    assert accepts(form.constraint(lambda text: None), "a")


STRICT = Tool(name="f", strict=True)
GRAMMAR = Tool(name="f", input_format=InputFormat("regex", "a"))


def told(form: ToolConstraint) -> list[str]:
    """The fields that have no effect."""
    fields: list[str] = []
    form.check(True, lambda name, _: fields.append(name))
    return fields


@pytest.mark.parametrize(
    ("kind", "tool", "field"),
    [
        *((kind, STRICT, "tools.strict") for kind in ("llama3_json", "pythonic", "gemma4")),
        *((kind, GRAMMAR, "tools.format") for kind in ("llama3_json", "pythonic", "gemma4", "qwen3_coder", "glm45")),
    ],
)
def test_optional_calls_without_a_grammar_are_free_and_that_is_told(kind: str, tool: Tool, field: str) -> None:
    tools = Tool(name="free"), tool
    form = ToolConstraint(Conversation(messages=[], tools=tools), None, kind)
    assert told(form) == [field]
    assert form.constraint(lambda text: None) is None
    forced = ToolConstraint(Conversation(messages=[], tools=tools, tool_choice="required"), None, kind)
    assert told(forced) == []
    assert forced.constraint(lambda text: None) is not None


def test_calls_in_tags_hold_what_they_can_beside_a_grammar_that_they_cannot() -> None:
    tools = Tool(name="g", parameters=CITY, strict=True), GRAMMAR
    form = ToolConstraint(Conversation(messages=[], tools=tools), None, "qwen3_coder")
    assert told(form) == ["tools.format"]
    grammar = form.constraint(lambda text: None)
    call = "<tool_call>\n<function={}>\n<parameter={}>\nb\n</parameter>\n</function>\n</tool_call>".format
    assert accepts(grammar, call("f", "input"))
    assert accepts(grammar, call("g", "city"))
    assert not accepts(grammar, call("g", "town"))
    assert parsed(form, call("f", "input")).tool_calls == [ToolCall("f", "b", custom=True)]


@pytest.mark.parametrize("kind", ["pythonic", "gemma4", "olmo3"])
def test_a_format_beside_optional_tools_needs_a_grammar_of_calls(kind: str) -> None:
    content = StructuredOutputsParams(json=CITY)
    form = ToolConstraint(Conversation(messages=[], tools=(Tool(name="f"), STRICT)), content, kind)
    assert told(form) == ["structured_outputs", "tools.strict"]
    assert form.drops_format
    assert form.constraint(lambda text: None) is None
    forced = ToolConstraint(Conversation(messages=[], tools=(STRICT,), tool_choice="required"), content, kind)
    assert told(forced) == []
    assert not forced.drops_format


@pytest.mark.parametrize("kind", ["qwen3_coder", "granite", "openai", "glm45", "mistral", "llama3_json"])
def test_a_format_beside_tools_holds_where_calls_have_a_grammar(kind: str) -> None:
    form = form_of(StructuredOutputsParams(json=CITY), True, kind)
    assert told(form) == []
    assert not matcher(form.constraint(lambda text: None)).is_error()


@pytest.mark.parametrize("kind", [name for name in TOOL_FORMS if name != "openai"])
def test_a_required_call_is_a_list_whatever_the_model(kind: str) -> None:
    tool = Tool(name="f", parameters=CITY)
    form = ToolConstraint(Conversation(messages=[], tools=(tool,), tool_choice="required"), None, kind)
    text = '[{"name": "f", "parameters": {"city": "Rome"}}]'
    assert accepts(form.constraint(lambda text: None), text)
    assert parsed(form, text).tool_calls == [ToolCall("f", '{"city": "Rome"}')]


@pytest.mark.parametrize("choice", ["required", NamedTool("f")])
def test_a_required_call_of_harmony_stands_in_its_channel(choice: ToolChoice) -> None:
    tools = Tool(name="f", parameters=CITY), Tool(name="g", input_format=InputFormat("regex", "a+"))
    form = ToolConstraint(Conversation(messages=[], tools=tools, tool_choice=choice), None, "openai")
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    text = thought + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Rome"}'
    other = thought + '<|channel|>commentary to=functions.g <|constrain|>json<|message|>{"input": "aa"}'
    assert accepts(form.constraint(lambda text: None), text)
    assert parsed(form, text) == ParsedText("", "Hm.", [ToolCall("f", '{"city": "Rome"}')])
    assert accepts(form.constraint(lambda text: None), other) == (choice == "required")
    assert parsed(form, other).tool_calls == [ToolCall("g", "aa", custom=True)]
    assert not accepts(form.constraint(lambda text: None), "<|channel|>final<|message|>Hello")


def test_harmonys_free_calls_need_no_grammar_and_strict_ones_have_one() -> None:
    assert form_of(None, False, "openai").constraint(lambda text: None) is None
    constraint = form_of(None, True, "openai").constraint(lambda text: None)
    assert accepts(constraint, "<|channel|>final<|message|>Hello")
    assert not accepts(constraint, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}")
