"""The schema of a custom tool's call: its input is a string whose pattern is the tool's regex or Lark grammar.

A grammar becomes one regex, as llguidance can match a regex, but no grammar, in the escaped form of a JSON string.
Compiles nothing.
"""

import json
import re
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pyllm.errors import RequestError
from pyllm.frontend.chat.conversation import InputFormat
from pyllm.frontend.text.regex_classes import with_ascii_classes, without_nul
from pyllm.parameters.structured_outputs_params import MAX_GRAMMAR_BYTES

MAX_DEFINITION_BYTES = 1 << 16

_STRING = r'"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4}|x[a-fA-F0-9]{2})|[^"\\\x00-\x1f\x7f])*"'
_NAME = r"_?[A-Za-z][\w-]*"
_PIECE = re.compile(
    rf"""
    (?P<gap>\s+ | (?:\#|//)[^\n]* | ->\s*[\w-]+)  # whitespace, comments and the names of alternatives
    | (?P<first>{_STRING})\s*\.\.\s*(?P<last>{_STRING})
    | (?P<string>{_STRING})(?P<case>i?)
    | /(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[a-z]*)
    | %import\s+common\.(?P<imported>\w+)(?:[ \t]*->[ \t]*(?P<alias>{_NAME}))?
    | [!?]{{0,2}}(?P<defined>{_NAME})(?:\.-?[0-9]+)?[ \t]*:(?!:)
    | (?P<name>{_NAME})
    | ~\s*(?P<least>[0-9]+)(?:\s*\.\.\s*(?P<most>[0-9]+))?
    | (?P<braces>\{{[0-9]+(?:,[0-9]*)?\}})
    | (?P<operator>[|()\[\]*+?])
    | (?P<refused>%\w* | <[^<>\s]+> | @[\w-]+ | __[\w-]* | :: | .)
    """,
    re.VERBOSE | re.DOTALL,
)
_HEX_ESCAPE = re.compile(r"(\\\\)|\\x(..)")
_OPERATORS = {"[": "(?:", "]": ")?"}
_GROUP_ENDS = {"(": ")", "(?:": ")?"}
# The parts of a regex that `_checked` looks at.
_CHECKED = re.compile(r"\\.|\[\^?\]?|\]|\(\?<?[=!]|[()^$]|\{(?P<least>[0-9]{1,9}),(?P<most>[0-9]{1,9})\}", re.DOTALL)
_ASSERTIONS = {"^", "$", r"\A", r"\z", r"\b", r"\B", r"\<", r"\>", "(?=", "(?!", "(?<=", "(?<!"}
# In a pattern these classes would be those of ASCII.
_UNICODE = {"d": r"\p{Nd}", "D": r"\P{Nd}", "w": r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]"}
_UNICODE["W"] = _UNICODE["w"].replace("[", "[^", 1)

_DECIMAL = r"[0-9]+\.[0-9]*|\.[0-9]+"
_FLOAT = rf"(?:{_DECIMAL})(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": _DECIMAL,
    "_EXP": "[eE][+-]?[0-9]+",
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?(?:{_FLOAT})",
    "NUMBER": f"[0-9]+|{_FLOAT}",
    "SIGNED_NUMBER": f"[+-]?(?:[0-9]+|{_FLOAT})",
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"\#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
    "SQL_COMMENT": r"--[^\n]*",
}


def input_schema(given: InputFormat) -> dict[str, Any]:
    """The schema of `{"input": ...}` whose text follows a definition.

    Raises:
        RequestError: the definition is too long, or uses a feature that a regex lacks, such as recursion.
    """
    regex = lark_regex(given.definition) if given.syntax == "lark" else _whole(given.definition)
    return {
        "type": "object",
        "properties": {"input": {"type": "string", "pattern": f"^(?:{regex})$"}},
        "required": ["input"],
        "additionalProperties": False,
    }


def check_definitions(definitions: Sequence[str]) -> None:
    """Limit the definitions of one request together.

    Raises:
        RequestError: they are too long.
    """
    size = sum(map(_num_bytes, definitions))
    if size > MAX_DEFINITION_BYTES:
        text = (
            f"tools: the Lark grammars of the custom tools have {size} bytes (at most {MAX_DEFINITION_BYTES} together)"
        )
        raise RequestError(f"{text}; shorten them, or name one tool in tool_choice", "tools")


def lark_regex(definition: str) -> str:
    """The regex that matches the texts of a Lark grammar: the rule `start`, with the rules that it names inside it.

    Raises:
        RequestError: the definition is too long, or uses a feature that a regex lacks.
    """
    if (size := _num_bytes(definition)) > MAX_DEFINITION_BYTES:
        raise _refusal(f"a definition of {size} bytes (at most {MAX_DEFINITION_BYTES})", "shorten it")
    rules = _rules(definition)
    names = {rule: [part for part in parts if isinstance(part, _Name)] for rule, parts in rules.items()}
    regexes: dict[str, str] = {}
    size = 0
    try:
        for rule in TopologicalSorter(names).static_order():
            if rule not in rules:
                raise _refusal(f"the name {rule}, which has no definition,", "define it")
            _check_groups(rules[rule])
            size += sum(len(regexes[part] if isinstance(part, _Name) else part) for part in rules[rule])
            if size > MAX_GRAMMAR_BYTES:
                raise _refusal(f"a definition that grows beyond {MAX_GRAMMAR_BYTES} bytes as a regex", "shorten it")
            regexes[rule] = "".join(f"(?:{regexes[part]})" if isinstance(part, _Name) else part for part in rules[rule])
    except CycleError as error:
        raise _refusal(f"the recursive rule {error.args[1][0]}") from None
    if "start" not in regexes:
        raise _refusal("a definition without the rule start", "add it")
    return regexes["start"]


class _Name(str):
    """The name of a rule, in the place of its regex."""

    __slots__ = ()


def _rules(definition: str) -> dict[str, list[str]]:
    """The parts of each rule's regex."""
    rules: dict[str, list[str]] = {}
    parts: list[str] | None = None  # of the rule that the next piece may continue
    is_new_line = False
    for piece in _PIECE.finditer(definition):
        if piece["gap"] is not None:
            is_new_line |= "\n" in piece["gap"]
            continue
        if name := piece["defined"] or piece["alias"] or piece["imported"]:
            if name in rules:
                raise _refusal(f"a second definition of {name}")
            parts = rules[name] = []
        if piece["imported"] is not None:
            if (common := _COMMON.get(piece["imported"])) is None:
                raise _refusal(f"the import of {piece['imported']}")
            rules[name].append(_without_nul(common))
            parts = None
        elif piece["defined"] is None:
            part = _part(piece)
            if parts is None or (is_new_line and part != "|"):
                raise _refusal(f"{piece[0][:40]}, which is part of no rule,", "begin its line with | or a rule's name")
            parts.append(part)
        is_new_line = False
    return rules


def _check_groups(parts: list[str]) -> None:
    """Refuse a rule in which a parenthesis or bracket is not closed, or not opened."""
    ends: list[str] = []
    for part in parts:
        if part in _GROUP_ENDS:
            ends.append(_GROUP_ENDS[part])
        elif part in _GROUP_ENDS.values() and (not ends or ends.pop() != part):
            raise _refusal("an unopened ) or ]")
    if ends:
        raise _refusal("an unclosed ( or [", "close it")


def _part(piece: re.Match[str]) -> str:
    if piece["refused"] is not None:
        if piece[0] in ('"', "/"):
            raise _refusal(f"an unclosed {piece[0]}", "close it, or correct its escapes")
        raise _refusal(piece[0])
    if piece["name"] is not None:
        return _Name(piece["name"])
    if piece["first"] is not None:
        first, last = _text(piece["first"]), _text(piece["last"])
        if len(first) != 1 or len(last) != 1:
            raise _refusal(f"the range {first!r}..{last!r}, whose ends are not single characters,")
        return _without_nul(f"[\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}]")
    if piece["string"] is not None:
        return f"(?{piece['case']}:{_without_nul(re.escape(_text(piece['string'])))})"
    if piece["regex"] is not None:
        if unknown := piece["flags"].strip("imsu"):
            raise _refusal(f"the regex flag {unknown[0]}")
        regex = piece["regex"] if "m" in piece["flags"] else _without_anchors(piece["regex"])
        regex = _without_nul(_checked(regex))
        regex = re.sub(r"\\(.)", lambda found: _UNICODE.get(found[1], found[0]), regex, flags=re.DOTALL)
        return f"(?{piece['flags']}:{regex})"
    if piece["operator"] is not None:
        return _OPERATORS.get(piece["operator"], piece["operator"])
    return _checked(piece["braces"] or f"{{{piece['least']},{piece['most'] or piece['least']}}}")


def _text(string: str) -> str:
    """The text that a Lark string stands for."""
    decoded: str = json.loads(_HEX_ESCAPE.sub(lambda found: found[1] or f"\\u00{found[2]}", string))
    return decoded


def _whole(regex: str) -> str:
    """A regex that matches whole texts, with ASCII classes."""
    return _without_nul(with_ascii_classes(_checked(_without_anchors(regex))))


def _without_anchors(regex: str) -> str:
    """A regex without the anchors at its ends, which say nothing where it matches whole texts."""
    regex = regex.removeprefix("^")
    return regex[:-1] if re.search(r"(?<!\\)(?:\\\\)*\$\Z", regex) else regex


def _checked(regex: str) -> str:
    """The regex itself; refuses assertions, groups and classes that are not closed, and counts in the wrong order."""
    num_groups = num_classes = 0  # open ones
    for found in _CHECKED.finditer(regex):
        piece = found[0]
        if piece[0] == "[":
            num_classes += 1
        elif num_classes:
            num_classes -= piece == "]"
        elif piece in _ASSERTIONS:
            raise _refusal(f"the assertion {piece} in a regex")
        elif piece == ")" and num_groups == 0:
            raise _refusal("an unopened ) in a regex")
        elif found["least"] is not None and int(found["least"]) > int(found["most"]):
            raise _refusal(f"the repetition {piece}, whose first count is the greater one,")
        else:
            num_groups += (piece == "(") - (piece == ")")
    if num_groups or num_classes:
        raise _refusal(f"an unclosed {'[' if num_classes else '('} in a regex", "close it")
    return regex


def _without_nul(regex: str) -> str:
    if (lacking := without_nul(regex)) is None:
        raise _refusal("the character U+0000")
    return lacking


def _num_bytes(definition: str) -> int:
    return len(definition.encode(errors="surrogatepass"))


def _refusal(what: str, advice: str = "leave it out") -> RequestError:
    """The error for a part of a definition that has no regex. `advice` is a way to change it."""
    text = f"tools: in a custom tool's grammar {what} cannot be used where its input is part of a call"
    return RequestError(f"{text}; {advice}, or name the tool in tool_choice", "tools")
