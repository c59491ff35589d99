"""A constraint on an output, as the text that llguidance compiles. Compiles nothing: workers do, with limits.

Each conversion is linear in its text; GBNF's is not, so its texts must be shorter.
"""

import json
import re
from typing import TYPE_CHECKING

from pyllm.errors import RequestError
from pyllm.frontend.text.json_schemas import Ignore, enforced_schema, warn_once
from pyllm.frontend.text.regex_classes import with_ascii_classes
from pyllm.parameters.structured_outputs_params import ResolvedConstraint, StructuredOutputsParams, check_grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # The library is loaded by the first request that needs it.

MAX_GBNF_BYTES = 1 << 15

# With whitespace of their choice, small models may write whitespace without end. Fixed separators are forced tokens,
# which need no step; they are those of Python's `json.dumps`, of which models have read the most.
# A `oneOf` whose options may overlap is taken as `anyOf`, as there is no grammar of exactly one.
JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}

_FIELD = "structured_outputs"
_GBNF = re.compile(r"[ \t]*root[ \t]*::=")


def resolve_constraint(params: StructuredOutputsParams, ignore: Ignore = warn_once) -> ResolvedConstraint:
    """The same constraint as a grammar; raises as `grammar_text` does."""
    if isinstance(params, ResolvedConstraint):
        return params
    return ResolvedConstraint(grammar=grammar_text(params, ignore))


def grammar_text(params: StructuredOutputsParams, ignore: Ignore = warn_once) -> str:
    """The grammar of outputs that meet a constraint: Lark, or llguidance's JSON.

    A JSON schema may say in its `x-guidance` how it is written; otherwise there is a space after commas and colons, and
    no other whitespace. `ignore` is called with each keyword that the grammar cannot enforce.

    Raises:
        RequestError: it is not JSON, has nothing to choose from, or is too long, or a schema has an unknown type or the
            like. The worker refuses errors that only a compiler finds, such as a wrong regex.
    """
    if isinstance(params, ResolvedConstraint):
        return params.grammar
    if params.json_object:
        return _of_json({"type": "object"}, ignore)
    if params.json is not None:
        return _of_json(params.json, ignore)
    if params.choice is not None:
        return _of_choice(list(params.choice))
    if params.regex is not None:
        return _of_regex(params.regex)
    assert params.grammar is not None
    return _of_grammar(params.grammar)


def _of_json(schema: object, ignore: Ignore) -> str:
    from llguidance import LLMatcher

    try:
        if isinstance(schema, str):
            schema = json.loads(_checked(schema, "json"))
        if not isinstance(schema, dict):
            raise RequestError(f"{_FIELD}: json must be a JSON schema, an object, got {schema!r:.80}", _FIELD)
        schema = enforced_schema(schema, _FIELD, ignore)
        text = _checked(json.dumps(schema, ensure_ascii=False, allow_nan=False), "json")
        return _checked(LLMatcher.grammar_from_json_schema(text, defaults=JSON_STYLE), "json")
    except RequestError:
        raise
    except RecursionError:
        raise RequestError(f"{_FIELD}: json is nested too deeply", _FIELD) from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"{_FIELD}: json is not a JSON schema: {error}", _FIELD) from None


def _of_choice(choices: list[str]) -> str:
    if not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError(f"{_FIELD}: choice must be a list of at least one text", _FIELD)
    return _checked("start: " + " | ".join(map(_literal, choices)), "choice")


def _of_regex(regex: str) -> str:
    from llguidance import LLMatcher

    ascii_regex = with_ascii_classes(_checked(regex, "regex"))
    return _checked(LLMatcher.grammar_from_regex(ascii_regex), "regex")


def _of_grammar(grammar: str) -> str:
    _checked(grammar, "grammar")
    if not any(map(_GBNF.match, grammar.splitlines())):
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark

    size = len(grammar.encode())
    if size > MAX_GBNF_BYTES:
        text = f"{_FIELD}: a grammar in GBNF must be at most {MAX_GBNF_BYTES} bytes, got {size}; write it in Lark"
        raise RequestError(text, _FIELD)
    try:
        return gbnf_to_lark(grammar)
    except RecursionError:
        raise RequestError(f"{_FIELD}: the grammar is nested too deeply", _FIELD) from None
    except Exception as error:  # noqa: BLE001 - the converter raises Exception itself
        raise RequestError(f"{_FIELD}: the grammar is neither GBNF nor Lark: {error}", _FIELD) from None


def _literal(text: str) -> str:
    """A text in Lark: as in JSON, and without any control character, DEL included."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _checked(text: str, name: str) -> str:
    check_grammar(text, name)
    return text
