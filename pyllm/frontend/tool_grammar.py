"""The grammar of an answer that calls tools, in Lark, and of one that reasons first. Compiles nothing.

Each tool's schema stands by itself in it, so that its references hold.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.parsers.selection import HERMES_CLOSING, HERMES_OPENING
from pyllm.frontend.parsers.think import CLOSING, OPENING
from pyllm.frontend.structured_outputs import JSON_STYLE

# The id of a text that is one added token, which a grammar must name as such; None for any other text.
TokenId = Callable[[str], int | None]

_TEXT = r"/(.|\n)*/"
_SPACE = r"/[ \n]{0,2}/"


def call_list_grammar(tools: Iterable[tuple[str, dict[str, Any]]], parallel: bool) -> str:
    """A list of `{"name": ..., "parameters": ...}` in brackets: at least one, and one only unless `parallel`.

    `tools` are names and schemas.

    Raises:
        RequestError: a schema cannot be sent.
    """
    rules, calls = _calls(tools, "parameters")
    more = ' (", " call)*' if parallel else ""
    return "\n".join([f'start: "[" call{more} "]"', f"call: {calls}", *rules])


def hermes_grammar(tools: Iterable[tuple[str, dict[str, Any]]], parallel: bool, token_id: TokenId) -> str:
    """Any text, and calls between Hermes' markers that keep to their schemas; one call at most unless `parallel`.

    Raises:
        RequestError: a schema cannot be sent.
    """
    rules, calls = _calls(tools, "arguments")
    closing = _marker(HERMES_CLOSING, token_id)
    return "\n".join(
        [
            f"start: (opening call){'*' if parallel else '?'} TEXT",
            _until("opening", HERMES_OPENING, token_id),
            f'call: "\\n" ({calls}) "\\n" {closing}',
            f"TEXT: {_TEXT}",
            *rules,
        ]
    )


def after_reasoning(grammar: str, opened: bool, token_id: TokenId) -> str:
    """The same grammar after reasoning, which is free; where the prompt has not `opened` it, there may be none.

    Between the two there may be no more than two line breaks or spaces, and nothing stands before either: whitespace
    without end is what small models write when they may.

    Raises:
        RequestError: the grammar is nested too deeply.
    """
    if opened:
        start = "start: reasoning SPACE @output"
    else:
        start = f"start: (opening reasoning SPACE)? @output\nopening: {_marker(OPENING, token_id)}"
    reasoning = _until("reasoning", CLOSING, token_id)
    first = {"lark_grammar": f"{start}\n{reasoning}\nSPACE: {_SPACE}\nTEXT: {_TEXT}"}
    try:
        parts = json.loads(grammar)["grammars"] if grammar.lstrip().startswith("{") else [{"lark_grammar": grammar}]
        parts = [{**parts[0], "name": "output"}, *parts[1:]]
        return json.dumps({"grammars": [first, *parts]}, ensure_ascii=False)
    except RecursionError:
        raise RequestError("structured_outputs: the grammar is nested too deeply", "structured_outputs") from None
    except (ValueError, TypeError, KeyError, IndexError) as error:
        text = f"structured_outputs: the grammar is no JSON of llguidance's: {error!r}"
        raise RequestError(text, "structured_outputs") from None


def _calls(tools: Iterable[tuple[str, dict[str, Any]]], key: str) -> tuple[list[str], str]:
    """A rule for each tool, and the choice among them."""
    rules = []
    for index, (name, schema) in enumerate(tools):
        begin = json.dumps(f'{{"name": {json.dumps(name)}, "{key}": ')
        rules.append(f'call_{index}: {begin} %json {_schema_text(schema, name)} "}}"')
    return rules, " | ".join(f"call_{index}" for index in range(len(rules)))


def _schema_text(schema: dict[str, Any], name: str) -> str:
    try:
        text = json.dumps({"x-guidance": JSON_STYLE, **schema}, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (RecursionError, ValueError) as error:
        raise RequestError(f"tools: the parameters of {name!r} are no JSON schema: {error}", "tools") from None
    return text


def _until(rule: str, marker: str, token_id: TokenId) -> str:
    """A rule for any text up to the first marker, and the marker."""
    token = token_id(marker)
    if token is not None:
        return f"{rule}: TEXT <[{token}]>"
    escaped = marker.replace("/", r"\/")
    return f"{rule}[lazy]: /(.|\\n)*{escaped}/"


def _marker(marker: str, token_id: TokenId) -> str:
    token = token_id(marker)
    return json.dumps(marker) if token is None else f"<[{token}]>"
