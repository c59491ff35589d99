"""The grammars, compiled as a worker would, against texts that follow them and texts that do not."""

from typing import Any

import pytest
import tokenizers
from llguidance import LLTokenizer

from pyllm.errors import RequestError
from pyllm.frontend.tool_grammar import after_reasoning, call_list_grammar, hermes_grammar
from pyllm.workers.grammar_matcher import compile_grammar
from tests.frontend import tiny_tokenizers

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
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


class Vocabulary:
    """A tokenizer whose markers are plain text, added tokens, or special ones."""

    def __init__(self, kind: str) -> None:
        self._tokenizer = tiny_tokenizers.byte_level()
        if kind == "added":
            self._tokenizer.add_tokens(MARKERS)
        elif kind == "special":
            self._tokenizer.add_special_tokens([tokenizers.AddedToken(marker, special=True) for marker in MARKERS])
        self._guide = LLTokenizer(self._tokenizer.to_str(), eos_token=[0])

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
        return vocabulary.accepts(hermes_grammar(TOOLS, parallel, vocabulary.token_id), text)

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
    with pytest.raises(RequestError, match="'f' are no JSON schema"):
        call_list_grammar([("f", {"const": "\ud800"})], True)
    with pytest.raises(RequestError, match="llguidance"):
        after_reasoning('{"grammars": []}', True, lambda text: None)
    with pytest.raises(RequestError, match="nested too deeply"):
        after_reasoning('{"grammars": ' + "[" * 100_000, True, lambda text: None)
