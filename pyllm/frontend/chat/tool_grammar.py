"""Lark grammars for answers that must call tools, that may call tools, and that reason first. Compiles nothing.

Each tool's schema is embedded by itself, so that its references stay valid.
"""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from pyllm.frontend.chat.grammar_rules import TEXT, TokenId, ToolSchema, marker_rule, schema_rule, until, within
from pyllm.frontend.chat.parsers.parser_selection import tool_form
from pyllm.frontend.chat.parsers.reasoning_parsers import THINK, ReasoningForm
from pyllm.frontend.chat.parsers.tool_parsers import MISTRAL_ARGUMENTS, ToolForm
from pyllm.frontend.chat.tagged_grammar import tagged_calls

ANY_TEXT = f"start: {TEXT}"
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
    rules, calls = _calls(tools, "name", "parameters")
    more = ' (", " call)*' if parallel else ""
    return "\n".join([f'start: "[" call{more} "]"', f"call: {calls}", *rules])


def calls_in_text(kind: str, tools: Iterable[ToolSchema], parallel: bool, token_id: TokenId) -> str:
    """Any text, with calls that follow their schemas behind the form's marker: at most one unless `parallel`.

    Raises:
        RequestError: a schema cannot be sent.
    """
    form = tool_form(kind)
    lines = [
        f"start: (opening body){'*' if parallel else '?'} TEXT",
        until("opening", form.marker, token_id),
        f"TEXT: {TEXT}",
    ]
    return "\n".join([*lines, *_body(form, tools, parallel, token_id)])


def calls_or_content(
    kind: str, tools: Iterable[ToolSchema], parallel: bool, content: Content, token_id: TokenId
) -> str:
    """Calls in the model's own format that follow their schemas, or content that follows its grammar; never both.

    Where the marker is not a token, it takes precedence over content that begins with the same characters.

    Raises:
        RequestError: a schema cannot be sent, or the content's grammar is nested too deeply.
    """
    form = tool_form(kind)
    marker = marker_rule(form.marker, token_id)
    next_line = ' ("\\n" marker body)*'
    more = (
        {"closed": next_line, "tagged": next_line, "mistral": " (marker body)*"}.get(form.style, "") if parallel else ""
    )
    lines = [
        f"start: calls | @{_INNER}",
        f"calls: marker{'?' if content.has_bare_calls else ''} body{more}",
        f"marker: {marker}",
        *([f"TEXT: {TEXT}"] if form.style == "tagged" else ()),
    ]
    return within("\n".join([*lines, *_body(form, tools, parallel, token_id)]), content.grammar, _INNER)


def after_reasoning(grammar: str, opened: bool, token_id: TokenId, form: ReasoningForm = THINK) -> str:
    """A grammar after unconstrained reasoning, which is optional unless the prompt has `opened` it.

    At most two line breaks or spaces may separate the two, and nothing may precede them: small models tend to write
    whitespace forever where they may.

    Raises:
        RequestError: the grammar is nested too deeply.
    """
    if opened:
        start = f"start: reasoning SPACE @{_OUTPUT}"
    else:
        start = f"start: (opening reasoning SPACE)? @{_OUTPUT}\nopening: {marker_rule(form.openings[0], token_id)}"
    reasoning = until("reasoning", form.closings, token_id)
    return within(f"{start}\n{reasoning}\nSPACE: {_SPACE}\nTEXT: {TEXT}", grammar, _OUTPUT)


def _body(form: ToolForm, tools: Iterable[ToolSchema], parallel: bool, token_id: TokenId) -> list[str]:
    """The rule `body`, which matches the text after a marker, and the rules that it needs."""
    tools = list(tools)
    if form.style == "tagged":
        assert form.tags is not None
        return tagged_calls(form.tags, form.closing, tools, token_id)
    rules, calls = _calls(tools, *form.keys)
    rules.append(f"call: {calls}")
    match form.style:
        case "closed":
            body = f'"\\n" call "\\n" {marker_rule(form.closing, token_id)}'
        case "list":
            more = ' (", " call)*' if parallel else ""
            body = f'"[" call{more} "]" {marker_rule(form.closing, token_id) if form.closing else ""}'
        case "mistral":
            more = ' (", " call)*' if parallel else ""
            body = f'" "? "[" call{more} "]"'
            named = [tool for tool in enumerate(tools) if _HEADER_NAME.fullmatch(tool[1][0])]
            if named:
                body += f" | ({' | '.join(f'named_{index}' for index, _ in named)})"
                arguments = marker_rule(MISTRAL_ARGUMENTS, token_id)
                rules += [
                    f"named_{index}: {json.dumps(name)} ({arguments})? args_{index}" for index, (name, _) in named
                ]
        case _:
            body = 'call ("; " call)*' if parallel else "call"
    return [f"body: {body}", *rules]


def _calls(tools: Iterable[ToolSchema], name_key: str, key: str) -> tuple[list[str], str]:
    """A rule for each tool's call, one for its arguments, and the choice among the calls.

    The literals are split as llguidance splits JSON, since its lexer takes the longest match: with longer literals,
    JSON content could not begin with the same characters as a call.
    """
    rules = []
    for index, (name, schema) in enumerate(tools):
        pieces = ["{", json.dumps(name_key), ": ", json.dumps(name), ", ", json.dumps(key), ": "]
        rules.append(f'call_{index}: {" ".join(map(json.dumps, pieces))} args_{index} "}}"')
        rules.append(f"args_{index}: {schema_rule(schema, name)}")
    return rules, " | ".join(f"call_{index}" for index in range(len(rules) // 2))
