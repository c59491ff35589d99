"""Parts that several Lark grammars share: markers, texts up to a marker, schemas, a grammar within another."""

import json
import re
from collections.abc import Callable
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.text.structured_outputs import JSON_STYLE

# The id of a text that is one added token, which a grammar must name by its id; None for any other text.
TokenId = Callable[[str], int | None]
# A tool's name, and the schema of a call's arguments.
ToolSchema = tuple[str, dict[str, Any]]

TEXT = r"/(.|\n)*/"


def within(lark: str, grammar: str, name: str) -> str:
    """A grammar that refers to another one by this name, together with that one.

    Raises:
        RequestError: the other one is nested too deeply, or no grammar.
    """
    try:
        parts = json.loads(grammar)["grammars"] if grammar.lstrip().startswith("{") else [{"lark_grammar": grammar}]
        parts = [{**parts[0], "name": name}, *parts[1:]]
        return json.dumps({"grammars": [{"lark_grammar": lark}, *parts]}, ensure_ascii=False)
    except RecursionError:
        raise RequestError("structured_outputs: the grammar is nested too deeply", "structured_outputs") from None
    except (ValueError, TypeError, KeyError, IndexError) as error:
        text = f"structured_outputs: the grammar is not llguidance's JSON: {error!r}"
        raise RequestError(text, "structured_outputs") from None


def schema_rule(schema: dict[str, Any], name: str) -> str:
    """The Lark expression for JSON of a schema, of the tool with this name.

    Raises:
        RequestError: the schema cannot be sent.
    """
    try:
        own = schema.get("x-guidance")
        style = {**JSON_STYLE, **own} if isinstance(own, dict) else JSON_STYLE
        text = json.dumps({**schema, "x-guidance": style}, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (RecursionError, ValueError) as error:
        raise RequestError(f"tools: the parameters of {name!r} are not a JSON schema: {error}", "tools") from None
    return f"%json {text}"


def until(rule: str, marker: str | tuple[str, ...], token_id: TokenId) -> str:
    """A rule for any text up to and including the first marker, or the first of several that are no tokens."""
    if not isinstance(marker, str) and len(marker) > 1:
        escaped = "|".join(_in_regex(each) for each in marker)
        return f"{rule}[lazy]: /(.|\\n)*({escaped})/"
    marker = marker if isinstance(marker, str) else marker[0]
    token = token_id(marker)
    if token is not None:
        return f"{rule}: TEXT <[{token}]>"
    return f"{rule}[lazy]: /(.|\\n)*{_in_regex(marker)}/"


def marker_rule(marker: str, token_id: TokenId) -> str:
    """The Lark expression for a marker: its token if it is one."""
    token = token_id(marker)
    return json.dumps(marker) if token is None else f"<[{token}]>"


def _in_regex(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
