"""Each family's form: what a text is made of, however it is cut, and any arguments come back."""

import itertools
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.config.server_settings import REASONING_PARSERS, TOOL_CALL_PARSERS
from pyllm.frontend.chat.parsers.drafted_calls import CallSyntax
from pyllm.frontend.chat.parsers.parsed_pieces import ParsedText, Parser, folded
from pyllm.frontend.chat.parsers.parser_selection import tool_call_parser, tool_form
from pyllm.frontend.chat.parsers.reasoning_parsers import REASONING_FORMS
from pyllm.frontend.chat.parsers.think import ThinkParser
from pyllm.frontend.chat.parsers.tool_parsers import TOOL_FORMS
from tests.frontend.chat.parsers import family_texts, texts
from tests.frontend.chat.parsers.test_parsers import given_after_each, run
from tests.tiers import cases

CASES = [(name, case) for name, cases in family_texts.FAMILIES.items() for case in cases]
FRAGMENTS = st.sampled_from([*family_texts.FRAGMENTS, *'{}[]()",:; \n\\<>|=a1-'])


def make(name: str) -> Parser:
    parser = tool_call_parser(name, family_texts.SCHEMAS)
    assert parser is not None
    return parser


def test_the_names_that_the_flags_take_are_those_of_the_forms() -> None:
    assert set(TOOL_CALL_PARSERS) == {"auto", "none", *TOOL_FORMS}
    assert set(REASONING_PARSERS) == {"auto", "none", *REASONING_FORMS}
    assert {id(TOOL_FORMS[name]) for name in [*family_texts.FAMILIES, "hermes", "mistral", "llama3_json"]} == {
        id(form) for form in TOOL_FORMS.values()
    }


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_text_is_what_it_is_made_of_and_no_cut_changes_it(name: str, case: texts.Case) -> None:
    machine, text = partial(make, name), case.text
    assert folded(run(machine, [text])) == case.whole
    one_by_one = given_after_each(machine, text)
    for place in range(len(text) + 1):
        parts = [part for part in (text[:place], text[place:]) if part]
        assert folded(run(machine, parts)) == case.whole, parts
        assert given_after_each(machine, parts).items() <= one_by_one.items(), parts


@settings(max_examples=cases(600))
@given(
    st.sampled_from(sorted(family_texts.FAMILIES)),
    st.lists(st.lists(FRAGMENTS, max_size=6).map("".join), max_size=12),
)
def test_no_cuts_of_any_text_change_anything(name: str, parts: list[str]) -> None:
    machine = partial(make, name)
    parts = [part for part in parts if part]
    text = "".join(parts)
    assert given_after_each(machine, parts).items() <= given_after_each(machine, text).items()
    whole = folded(run(machine, parts))
    assert whole == folded(run(machine, text)) == folded(run(machine, [text]))
    if not whole.tool_calls and name != "openai":
        assert whole.content == text


ENDINGS = [
    (name, case.text)
    for name, cases in family_texts.FAMILIES.items()
    for case in cases
    if case.whole.tool_calls and not case.whole.content and tool_form(name).markers
]


@pytest.mark.parametrize(("name", "text"), ENDINGS)
def test_complete_calls_at_the_end_of_unclosed_reasoning_are_calls(name: str, text: str) -> None:
    calls = folded(run(partial(make, name), [text])).tool_calls
    form = tool_form(name)
    begins = text.lstrip().startswith(form.markers)
    complete = begins and all(is_json(call.arguments) for call in calls)

    def machine() -> Parser:
        return ThinkParser(make(name), True, calls=CallSyntax(form.markers, partial(make, name)))

    for parts in ([f"Hm.\n{text}"], f"Hm.\n{text}"):
        whole = folded(run(machine, parts))
        if complete:
            assert whole == ParsedText("", "Hm.", calls)
        elif begins:
            assert whole == ParsedText("", f"Hm.\n{text}")
    closed = folded(run(machine, [f"Hm.\n{text}\n</think>So"]))
    assert (closed.content, closed.tool_calls) == ("So", [])
    assert closed.reasoning == f"Hm.\n{text}".rstrip()


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


TEXTS = st.text(st.sampled_from("ab \n'\"\\{}[](),:=é🙂<|")) | st.text(max_size=8)
NAMES = st.text(st.sampled_from("abc_"), min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


def as_python(arguments: dict[str, Any]) -> str:
    return f"f({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def as_gemma(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case list():
            return f"[{','.join(as_gemma(item, quote) for item in value)}]"
        case dict():
            return "{" + ",".join(f"{key}:{as_gemma(item, quote)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def in_tags(write: Callable[..., str], arguments: dict[str, Any]) -> str:
    pairs = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in arguments.items()]
    return write(*pairs)


GEMMA_QUOTE = '<|"|>'
WRITTEN: dict[str, Callable[[dict[str, Any]], str]] = {
    "pythonic": lambda arguments: f"[{as_python(arguments)}]",
    "olmo3": lambda arguments: f"<function_calls>\n{as_python(arguments)}\n</function_calls>",
    "gemma4": lambda arguments: f"<|tool_call>call:f{as_gemma(arguments, GEMMA_QUOTE)}<tool_call|>",
    "functiongemma": lambda arguments: f"<start_function_call>call:f{as_gemma(arguments, '<escape>')}",
    "qwen3_coder": partial(in_tags, family_texts.qwen),
    "glm45": partial(in_tags, family_texts.glm),
}


@settings(max_examples=cases(400))
@given(st.sampled_from(sorted(WRITTEN)), ARGUMENTS)
def test_any_arguments_come_back(name: str, arguments: dict[str, Any]) -> None:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    types = {key: {"type": kinds.get(type(value), "null")} for key, value in arguments.items()}
    parser = tool_call_parser(name, {"f": {"type": "object", "properties": types}})
    assert parser is not None
    text = WRITTEN[name](arguments)
    whole = folded([*itertools.chain.from_iterable(map(parser.feed, text)), *parser.finish()])
    assert whole.content == ""
    (call,) = whole.tool_calls
    assert json.loads(call.arguments) == arguments


def carelessly(value: Any, comma: str) -> str:
    """JSON as models write it: control characters and backslashes stand in strings as they are, and a comma at the end.

    A backslash before what an escape begins with is still one.
    """
    match value:
        case str():
            text = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{re.sub(ESCAPED, lambda match: match[0][1:], text)}"'
        case list() if value:
            return f"[{', '.join(carelessly(item, comma) for item in value)}{comma}]"
        case dict() if value:
            members = (f"{carelessly(key, comma)}: {carelessly(item, comma)}" for key, item in value.items())
            return f"{{{', '.join(members)}{comma}}}"
    return json.dumps(value)


# A backslash that is doubled but need not be.
ESCAPED = re.compile(r'(?<!\\)\\\\(?![\\"/bfnrtu]|\Z)')
IN_JSON: dict[str, Callable[[str], str]] = {
    "openai": "<|channel|>commentary to=functions.f<|message|>{}<|call|>".format,
    "hermes": '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'.format,
    "mistral": "[TOOL_CALLS]f[ARGS]{}".format,
    "granite": '<|tool_call|>[{{"name": "f", "arguments": {}}}]'.format,
    "phi4_mini_json": 'functools[{{"arguments": {}, "name": "f"}}]'.format,
    "cohere_command3": '<|START_ACTION|>[{{"tool_name": "f", "parameters": {}}}]<|END_ACTION|>'.format,
    "llama3_json": '{{"name": "f", "parameters": {}}}'.format,
}


@settings(max_examples=cases(400))
@given(st.sampled_from(sorted(IN_JSON)), ARGUMENTS, st.sampled_from(["", ",", " ,\n"]), st.booleans())
def test_arguments_that_can_be_mended_are_json(name: str, arguments: dict[str, Any], comma: str, in_text: bool) -> None:
    written = carelessly(arguments, comma)
    if in_text:
        written = json.dumps(written)
    whole = folded(run(partial(make, name), IN_JSON[name](written)))
    assert whole.content == ""
    (call,) = whole.tool_calls
    assert json.loads(call.arguments) == arguments


@settings(max_examples=cases(400))
@given(st.sampled_from(sorted(IN_JSON)), st.lists(st.sampled_from('xyz {}[]",:\\\n<'), max_size=30).map("".join))
def test_nothing_after_the_beginning_of_a_call_is_lost(name: str, broken: str) -> None:
    whole = folded(run(partial(make, name), IN_JSON[name]('{"a": "' + broken)))
    text = "".join(call.arguments for call in whole.tool_calls) + whole.content
    assert [char for char in text if char in "xyz"] == [char for char in broken if char in "xyz"]


def test_arguments_come_as_they_are_written() -> None:
    parser = make("qwen3_coder")
    assert (
        folded(parser.feed("<tool_call>\n<function=f>\n<parameter=city>\nPar")).tool_calls[0].arguments
        == '{"city": "Par'
    )


def num_calls(name: str, text: str) -> int:
    """How many functions a machine calls to read a text, which it gets in one piece."""
    machine, count = make(name), 0

    def tally(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(tally)
    try:
        machine.feed(text)
        machine.finish()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", sorted([*family_texts.FAMILIES, "hermes", "mistral", "llama3_json"]))
@pytest.mark.parametrize(
    "inner", ["", '{"a": "<tool\n', '{","a":"', "f(a=[1,", "call:f{a:[", "<function=f>", "x" * 40 + "<|message|>"]
)
def test_a_hostile_text_takes_work_in_proportion(name: str, inner: str) -> None:
    unit = (tool_form(name).marker or ("<|channel|>" if name == "openai" else "[")) + inner
    assert num_calls(name, unit * 200) <= 5 * num_calls(name, unit * 50)
