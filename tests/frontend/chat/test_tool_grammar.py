"""The grammars, compiled as a worker would, against texts that follow them and texts that do not."""

import itertools
from typing import Any

import pytest
import tokenizers
from llguidance import LLTokenizer

from pyllm.errors import RequestError
from pyllm.frontend.chat.parsers.parser_selection import ToolCallParser
from pyllm.frontend.chat.tool_grammar import (
    Content,
    after_reasoning,
    call_list_grammar,
    calls_in_text,
    calls_or_content,
)
from pyllm.frontend.text.structured_outputs import grammar_text
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from pyllm.workers.grammar.grammar_compiler import compile_grammar
from tests.frontend.text import tiny_tokenizers
from tests.tiers import full

MARKERS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
    *("<|tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>"),
]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 5}},
}
DAYS: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"$ref": "#/$defs/name"}},
    "required": ["days"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "integer"}},
}
TOOLS = [("weather", CITY), ("we", DAYS)]

ROME, THREE = '{"city": "Rome"}', '{"days": 3}'
ONE = {key: f'{{"name": "weather", "{key}": {ROME}}}' for key in ("arguments", "parameters")}
OTHER = {key: f'{{"name": "we", "{key}": {THREE}}}' for key in ("arguments", "parameters")}
# Of each way to write calls: one, two of them, and where there is no marker.
WRITTEN: dict[ToolCallParser, tuple[list[str], list[str], list[str]]] = {
    "hermes": (
        [f"<tool_call>\n{ONE['arguments']}\n</tool_call>"],
        [f"<tool_call>\n{ONE['arguments']}\n</tool_call>\n<tool_call>\n{OTHER['arguments']}\n</tool_call>"],
        [],
    ),
    "mistral": (
        [f"[TOOL_CALLS] [{ONE['arguments']}]", f"[TOOL_CALLS]weather[ARGS]{ROME}", f"[TOOL_CALLS]weather{ROME}"],
        [f"[TOOL_CALLS][{ONE['arguments']}, {OTHER['arguments']}]", f"[TOOL_CALLS]we{THREE}[TOOL_CALLS]weather{ROME}"],
        [],
    ),
    "granite": (
        [f"<|tool_call|>[{ONE['arguments']}]"],
        [f"<|tool_call|>[{ONE['arguments']}, {OTHER['arguments']}]"],
        [],
    ),
    "phi4_mini_json": ([f"functools[{ONE['arguments']}]"], [], []),
    "cohere_command3": (
        [f"<|START_ACTION|>[{ONE['parameters'].replace('name', 'tool_name')}]<|END_ACTION|>"],
        [],
        [],
    ),
    "llama3_json": (
        [f"<|python_tag|>{ONE['parameters']}"],
        [f"<|python_tag|>{ONE['parameters']}; {OTHER['parameters']}"],
        [ONE["parameters"]],
    ),
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# Forms of content, each with a text of it. The third has another lexer than the calls, since it skips blanks.
FORMS = [
    (StructuredOutputsParams(json=PERSON), '{"name": "weather", "age": 3}'),
    (StructuredOutputsParams(json_object=True), '{"name": "weather", "x": {"a": [1, "🙂"]}}'),
    (StructuredOutputsParams(grammar='start: WORD "!"\nWORD: /[a-z]+/\n%ignore " "'), "yes  !"),
    (StructuredOutputsParams(grammar='root ::= "a" | "b" root'), "bba"),
    (StructuredOutputsParams(regex="[a-z]+ [0-9]+"), "abc 12"),
    (StructuredOutputsParams(choice=["yes", "no"]), "yes"),
]


class Vocabulary:
    """A tokenizer whose markers are plain text, added tokens, or special ones."""

    def __init__(self, kind: str, end: str = "<|end|>") -> None:
        self.kind = kind
        self._tokenizer = tiny_tokenizers.byte_level()
        if kind == "added":
            self._tokenizer.add_tokens(MARKERS)
        elif kind == "special":
            self._tokenizer.add_special_tokens([tokenizers.AddedToken(marker, special=True) for marker in MARKERS])
        self._guide = LLTokenizer(self._tokenizer.to_str(), eos_token=[self._tokenizer.token_to_id(end)])

    def token_id(self, text: str) -> int | None:
        return self._tokenizer.token_to_id(text)

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether the whole text may come, and end."""
        matcher = compile_grammar(self._guide, grammar)
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.fixture(scope="module", params=["plain", "added", "special"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary(request.param)


def test_a_required_call_follows_the_schema_of_its_tool(vocabulary: Vocabulary) -> None:
    def accepts(text: str, parallel: bool = True) -> bool:
        return vocabulary.accepts(call_list_grammar(TOOLS, parallel), text)

    one = '{"name": "weather", "parameters": {"city": "Rome"}}'
    other = '{"name": "we", "parameters": {"days": 12}}'
    assert accepts(f"[{one}]")
    assert accepts(f"[{one}, {other}, {one}]")
    assert accepts(f"[{other}]", parallel=False)
    assert not accepts(f"[{one}, {other}]", parallel=False)
    assert not accepts("[]")
    assert not accepts(one)
    assert not accepts('[{"name": "we", "parameters": {"city": "Rome"}}]')
    assert not accepts('[{"name": "weather", "parameters": {"city": "Gotham"}}]')
    assert not accepts('[{"name": "w", "parameters": {}}]')


def test_strict_calls_are_kept_to_their_form_and_other_text_is_free(vocabulary: Vocabulary) -> None:
    def accepts(text: str, parallel: bool = True) -> bool:
        return vocabulary.accepts(calls_in_text("hermes", TOOLS, parallel, vocabulary.token_id), text)

    call = '<tool_call>\n{"name": "we", "arguments": {"days": 3}}\n</tool_call>'
    assert accepts("")
    assert accepts('Hello < {"name": 1} 🙂\n')
    assert accepts(f"So: {call}")
    assert accepts(f"{call}\n{call} and on", parallel=True)
    assert accepts(f"{call} and on", parallel=False)
    assert not accepts(call.replace("3", '"x"'))
    assert not accepts(call.replace("we", "clock"))
    assert not accepts(call[:-3])
    assert not accepts("<tool_call> hm")


@pytest.mark.parametrize("kind", ["hermes", "mistral"])
def test_strict_calls_stand_behind_a_marker_in_free_text(vocabulary: Vocabulary, kind: ToolCallParser) -> None:
    def accepts(text: str, parallel: bool = True) -> bool:
        return vocabulary.accepts(calls_in_text(kind, TOOLS, parallel, vocabulary.token_id), text)

    single, several, _ = WRITTEN[kind]
    for text in single:
        assert accepts(f"So: {text}")
        assert accepts(text, parallel=False)
        assert not accepts(text.replace("Rome", "Gotham"))
        assert not accepts(text.replace("weather", "clock"))
    for text in several:
        assert accepts(text)
        # A marker that is no special token may be part of the text; the parser leaves out what is too much.
        assert not accepts(text, parallel=False) or vocabulary.kind != "special"


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize(("form", "content"), FORMS)
@pytest.mark.parametrize("reasons", [full(False), True])
def test_an_answer_is_calls_or_content_and_no_mixture(
    vocabulary: Vocabulary, kind: ToolCallParser, form: StructuredOutputsParams, content: str, reasons: bool
) -> None:
    def accepts(text: str, parallel: bool = True, bare: bool = False) -> bool:
        inner = Content(grammar_text(form), bare)
        grammar = calls_or_content(kind, TOOLS, parallel, inner, vocabulary.token_id)
        if not reasons:
            return vocabulary.accepts(grammar, text)
        return vocabulary.accepts(after_reasoning(grammar, True, vocabulary.token_id), f"hm {content}</think>{text}")

    single, several, bare = WRITTEN[kind]
    assert accepts(content)
    for text in single + several:
        assert accepts(text)
        assert accepts(text, parallel=False) == (text in single)
        assert not accepts(text.replace("weather", "clock"))
        assert not accepts(text.replace("Rome", "Gotham"))
    for text in bare:
        assert accepts(text, bare=True)
        assert accepts(text, bare=False) == (form.json_object is True)
        assert accepts(content, bare=True)
    for first, second in itertools.product([content, *single, *several], repeat=2):
        if content in (first, second):
            assert not accepts(first + second)
            assert not accepts(f"{first}\n{second}")
    for text in ("Hello!", "", f"\t{content}", f"{content} ", f"So: {single[0]}", f"{single[0]} done"):
        assert not accepts(text)


@pytest.mark.parametrize("grammar", ['start: "yes" | "no"', call_list_grammar(TOOLS, True), '{"json": 1}'])
def test_reasoning_goes_before_any_form(vocabulary: Vocabulary, grammar: str) -> None:
    form = {
        'start: "yes" | "no"': "yes",
        '{"json": 1}': '{"city": "Rome"}',
    }.get(grammar, '[{"name": "we", "parameters": {"days": 12}}]')
    if grammar == '{"json": 1}':
        grammar = '{"grammars": [{"json_schema": {"type": "object"}}]}'

    def accepts(text: str, opened: bool) -> bool:
        return vocabulary.accepts(after_reasoning(grammar, opened, vocabulary.token_id), text)

    assert accepts(f"well {form} < 🙂\n</think>\n\n{form}", opened=True)
    assert not accepts(form, opened=True)
    assert not accepts(f"well</think> oh {form}", opened=True)
    assert accepts(form, opened=False)
    assert accepts(f"<think>well</think>\n{form}", opened=False)
    assert accepts(f"<think>\nwell\n</think>{form}", opened=False)
    assert not accepts(f"well</think>{form}", opened=False)
    # A model that may write whitespace may write nothing else.
    for space in ("\n", "\u205f", " "):
        assert not accepts(f"{space}{form}", opened=False)
    for space in ("\n\n\n", "\u205f"):
        assert not accepts(f"<think>well</think>{space}{form}", opened=False)
        assert not accepts(f"well</think>{space}{form}", opened=True)


def test_an_error_in_a_schema_does_not_show_the_grammar(vocabulary: Vocabulary) -> None:
    wrong = {"type": "object", "properties": {"city": {"type": "strin"}}}
    with pytest.raises(RequestError, match=r"Invalid type: strin$"):
        vocabulary.accepts(call_list_grammar([("weather", wrong)], True), "")


def test_what_is_no_schema_or_grammar_is_refused() -> None:
    with pytest.raises(RequestError, match="'f' are not a JSON schema"):
        call_list_grammar([("f", {"const": "\ud800"})], True)
    with pytest.raises(RequestError, match="llguidance"):
        after_reasoning('{"grammars": []}', True, lambda text: None)
    with pytest.raises(RequestError, match="nested too deeply"):
        after_reasoning('{"grammars": ' + "[" * 100_000, True, lambda text: None)
