"""Lark grammars for answers that must call tools, that may call tools, and that reason first. Compiles nothing.

Each tool's schema is embedded by itself, so that its references stay valid.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pyllm.errors import RequestError
from pyllm.frontend.chat.parsers.parser_selection import HERMES_CLOSING, MARKERS, MISTRAL_ARGUMENTS, ToolCallParser
from pyllm.frontend.chat.parsers.think import CLOSING, OPENING
from pyllm.frontend.text.structured_outputs import JSON_STYLE

# The id of a text that is one added token, which a grammar must name by its id; None for any other text.
TokenId = Callable[[str], int | None]
# A tool's name, and the schema or Lark rule for a call's arguments.
ToolSchema = tuple[str, dict[str, Any] | str]

_TEXT = r"/(.|\n)*/"
ANY_TEXT = f"start: {_TEXT}"
_SPACE = r"/[ \n]{0,2}/"
_OUTPUT, _INNER = "pyllm_output", "pyllm_content"  # names of the grammars that another one refers to
_HEADER_NAME = re.compile(r"[\w.\-]+")  # a name that Mistral's newer call format can have


class Content(NamedTuple):
    """The grammar of an answer without calls. `has_bare_calls`: calls without a marker are distinct from it."""

    grammar: str
    has_bare_calls: bool


def call_list_grammar(tools: Iterable[ToolSchema], parallel: bool) -> str:
    """A list of `{"name": ..., "parameters": ...}` in brackets: exactly one, or at least one if `parallel`.

    Raises:
        RequestError: a schema cannot be sent.
    """
    rules, calls = _calls(tools, "parameters")
    more = ' (", " call)*' if parallel else ""
    return "\n".join([f'start: "[" call{more} "]"', f"call: {calls}", *rules])


def calls_in_text(kind: ToolCallParser, tools: Iterable[ToolSchema], parallel: bool, token_id: TokenId) -> str:
    """Any text, with calls that follow their schemas after Hermes' or Mistral's marker: at most one unless `parallel`.

    Raises:
        RequestError: a schema cannot be sent.
    """
    lines = [
        f"start: (opening body){'*' if parallel else '?'} TEXT",
        _until("opening", MARKERS[kind], token_id),
        f"TEXT: {_TEXT}",
    ]
    return "\n".join([*lines, *_body(kind, tools, parallel, token_id)])


def calls_or_content(
    kind: ToolCallParser, tools: Iterable[ToolSchema], parallel: bool, content: Content, token_id: TokenId
) -> str:
    """Calls in the model's own format that follow their schemas, or content that follows its grammar; never both.

    Where the marker is not a token, it takes precedence over content that begins with the same characters.

    Raises:
        RequestError: a schema cannot be sent, or the content's grammar is nested too deeply.
    """
    marker = _marker(MARKERS[kind], token_id)
    more = {"hermes": ' ("\\n" marker body)*', "mistral": " (marker body)*"}.get(kind, "") if parallel else ""
    lines = [
        f"start: calls | @{_INNER}",
        f"calls: marker{'?' if content.has_bare_calls else ''} body{more}",
        f"marker: {marker}",
    ]
    return _before("\n".join([*lines, *_body(kind, tools, parallel, token_id)]), content.grammar, _INNER)


def after_reasoning(grammar: str, opened: bool, token_id: TokenId) -> str:
    """The same grammar after unconstrained reasoning, which is optional unless the prompt has `opened` it.

    At most two line breaks or spaces may separate the two, and nothing may precede them: small models tend to write
    whitespace forever where they may.

    Raises:
        RequestError: the grammar is nested too deeply.
    """
    if opened:
        start = f"start: reasoning SPACE @{_OUTPUT}"
    else:
        start = f"start: (opening reasoning SPACE)? @{_OUTPUT}\nopening: {_marker(OPENING, token_id)}"
    reasoning = _until("reasoning", CLOSING, token_id)
    return _before(f"{start}\n{reasoning}\nSPACE: {_SPACE}\nTEXT: {_TEXT}", grammar, _OUTPUT)


def _before(lark: str, grammar: str, name: str) -> str:
    """A grammar that refers to another one by this name, together with that one."""
    try:
        parts = json.loads(grammar)["grammars"] if grammar.lstrip().startswith("{") else [{"lark_grammar": grammar}]
        parts = [{**parts[0], "name": name}, *parts[1:]]
        return json.dumps({"grammars": [{"lark_grammar": lark}, *parts]}, ensure_ascii=False)
    except RecursionError:
        raise RequestError("structured_outputs: the grammar is nested too deeply", "structured_outputs") from None
    except (ValueError, TypeError, KeyError, IndexError) as error:
        text = f"structured_outputs: the grammar is not llguidance's JSON: {error!r}"
        raise RequestError(text, "structured_outputs") from None


def _body(kind: ToolCallParser, tools: Iterable[ToolSchema], parallel: bool, token_id: TokenId) -> list[str]:
    """The rule `body`, which matches the text after a marker, and the rules that it needs."""
    tools = list(tools)
    rules, calls = _calls(tools, "parameters" if kind == "llama3_json" else "arguments")
    rules.append(f"call: {calls}")
    match kind:
        case "hermes":
            body = f'"\\n" call "\\n" {_marker(HERMES_CLOSING, token_id)}'
        case "mistral":
            more = ' (", " call)*' if parallel else ""
            body = f'" "? "[" call{more} "]"'
            named = [tool for tool in enumerate(tools) if _HEADER_NAME.fullmatch(tool[1][0])]
            if named:
                body += f" | ({' | '.join(f'named_{index}' for index, _ in named)})"
                arguments = _marker(MISTRAL_ARGUMENTS, token_id)
                rules += [
                    f"named_{index}: {json.dumps(name)} ({arguments})? args_{index}" for index, (name, _) in named
                ]
        case _:
            body = 'call ("; " call)*' if parallel else "call"
    return [f"body: {body}", *rules]


def _calls(tools: Iterable[ToolSchema], key: str) -> tuple[list[str], str]:
    """A rule for each tool's call, one for its arguments, and the choice among the calls.

    The literals are split as llguidance splits JSON, since its lexer takes the longest match: with longer literals,
    JSON content could not begin with the same characters as a call.
    """
    rules = []
    for index, (name, schema) in enumerate(tools):
        pieces = ["{", '"name"', ": ", json.dumps(name), ", ", json.dumps(key), ": "]
        rules.append(f'call_{index}: {" ".join(map(json.dumps, pieces))} args_{index} "}}"')
        rules.append(f"args_{index}: {schema if isinstance(schema, str) else _schema_text(schema, name)}")
    return rules, " | ".join(f"call_{index}" for index in range(len(rules) // 2))


def _schema_text(schema: dict[str, Any], name: str) -> str:
    try:
        text = json.dumps({"x-guidance": JSON_STYLE, **schema}, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (RecursionError, ValueError) as error:
        raise RequestError(f"tools: the parameters of {name!r} are not a JSON schema: {error}", "tools") from None
    return f"%json {text}"


def _until(rule: str, marker: str, token_id: TokenId) -> str:
    """A rule for any text up to and including the first marker."""
    token = token_id(marker)
    if token is not None:
        return f"{rule}: TEXT <[{token}]>"
    escaped = re.escape(marker).replace("/", r"\/")
    return f"{rule}[lazy]: /(.|\\n)*{escaped}/"


def _marker(marker: str, token_id: TokenId) -> str:
    token = token_id(marker)
    return json.dumps(marker) if token is None else f"<[{token}]>"
