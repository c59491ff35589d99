"""Rules for tool calls in tags. Strings are not escaped there, so only `enum` and `const` of their schema hold."""

import json
from collections.abc import Iterable
from typing import Any

from pyllm.frontend.chat.grammar_rules import TokenId, ToolSchema, marker_rule, schema_rule, until
from pyllm.frontend.chat.parsers.values.argument_tags import Tags
from pyllm.frontend.chat.parsers.values.argument_types import types_of

_DEFINITIONS = ("$defs", "definitions")
_TEXT_TYPES = frozenset({"string"})


def tagged_calls(tags: Tags, closing: str, tools: Iterable[ToolSchema], token_id: TokenId) -> list[str]:
    """The rule `body`, which matches the text after a marker, and the rules that it needs beside `TEXT`, any text.

    Arguments come in the schema's order. A schema without properties allows any.

    Raises:
        RequestError: a schema cannot be sent.
    """

    def tag(text: str) -> str:
        return marker_rule(text, token_id) if text else ""

    # A value that is a string goes on up to the tag after it.
    rules = ['KEY: /[^<>"\\n]+/', until("text", tags.after_value, token_id)]
    calls = []
    line = '"\\n"' if tags.lines else ""
    value_begin = f'"\\n" {tag(tags.before_value)}' if tags.before_value else line
    for number, (name, schema) in enumerate(tools):
        parameters = []
        given = schema.get("required")
        required = given if isinstance(given, list) else []
        for index, (key, property_schema) in enumerate(_properties(schema)):
            value = _value(schema, key, property_schema, name)
            rest = "text" if value is None else f"({value}) {line} {tag(tags.after_value)}"
            rules.append(
                f"p{number}_{index}: {tag(tags.before_key)} {json.dumps(key)} {tag(tags.after_key)} "
                f'{value_begin} {rest} "\\n"'
            )
            parameters.append(f"p{number}_{index}" + ("" if key in required else "?"))
        if not parameters and schema.get("additionalProperties") is not False:
            parameters.append("any*")
        before, after = tag(tags.before_name), tag(tags.after_name)
        calls.append(f"call{number}")
        rules.append(f'call{number}: {before} {json.dumps(name)} {after} "\\n" {" ".join(parameters)} {tag(tags.end)}')
    rules.append(f'any: {tag(tags.before_key)} KEY {tag(tags.after_key)} {value_begin} text "\\n"')
    ends = f'"\\n" {tag(closing)}' if tags.end else tag(closing)
    begins = '"\\n"' if tags.before_name else ""
    return [f"body: {begins} ({' | '.join(calls)}) {ends}", *rules]


def _properties(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    properties = schema.get("properties")
    return list(properties.items()) if isinstance(properties, dict) else []


def _value(schema: dict[str, Any], key: str, property_schema: Any, name: str) -> str | None:
    """The Lark expression for a value, or None for any text."""
    if types_of(schema, key) == _TEXT_TYPES:
        values = property_schema.get("enum") if isinstance(property_schema, dict) else None
        if isinstance(property_schema, dict) and "const" in property_schema:
            values = [property_schema["const"]]
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
        return None
    definitions = {part: schema[part] for part in _DEFINITIONS if part in schema}
    return schema_rule({**definitions, **property_schema}, name)
