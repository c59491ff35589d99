"""Rewrites a custom tool's Lark grammar to match the JSON-escaped input inside a tool call. Compiles nothing.

JSON escapes each character independently, so rewriting each literal and each regex is enough. The whole grammar becomes
one terminal: llguidance's lexer looks back by one byte, so it could not end a terminal before an escape if another
escape may continue that terminal.
"""

import json
import re
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from pyllm.errors import RequestError
from pyllm.frontend.chat.custom_tool_regex import check_rewritten, escaped_regex, json_escaped, refusal
from pyllm.frontend.text.ascii_classes import with_ascii_classes

_PIECE = re.compile(
    r"""
    (?P<omitted>(?:\#|//)[^\n]*|->[ \t]*[\w-]+)  # comments and the names of alternatives
    | (?P<string>"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4}|x[a-fA-F0-9]{2})|[^"\\\x00-\x1f\x7f])*")(?P<case>i?)
    | /(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[imslux]*)
    | %import[ \t]+common\.(?P<imported>[A-Z_]+)(?:[ \t]*->[ \t]*(?P<alias>[A-Z_][A-Z0-9_-]*))?
    | (?P<refused>%\w*|<[^<>\s]+>|@[\w-]+|::|~(?![ \t]*[0-9])|["/])  # among them the quote or slash of an open literal
    | (?P<range>\.\.)
    | (?P<brace>[{}])
    | (?P<name>[!?_]{0,3}[A-Za-z][\w-]*)(?P<colon>[ \t]*:)?
    | [0-9]+(?:\.\.[0-9]+)? | [ \t]+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
_SLASH = re.compile(r"(\\.)|/", re.DOTALL)
_HEX_ESCAPE = re.compile(r"(\\\\)|\\x(..)")

# Rewriting can lengthen a definition 65-fold.
MAX_DEFINITION_BYTES = 1 << 16

# Lark's common terminals that match characters which JSON escapes. The others need no rewriting.
_COMMON = {
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
    "C_COMMENT": r"\/\*[^*]*\*+([^\/*][^*]*\*+)*\/",
}


def input_grammar(definition: str) -> str:
    """The Lark expression for `{"input": ...}` whose text matches this definition.

    Raises:
        RequestError: the definition is too long, or uses a feature that cannot be rewritten, such as recursion.
    """
    if (size := _num_bytes(definition)) > MAX_DEFINITION_BYTES:
        raise refusal(f"a definition of {size} bytes (at most {MAX_DEFINITION_BYTES})", "shorten it")
    rewriting = _Rewriting()
    lark = rewriting.run(definition)
    rewriting.check_recursion()
    return _in_call(f"start: {_terminal('start')}\n{lark}")


def input_regex_grammar(definition: str) -> str:
    """The Lark expression for `{"input": ...}` whose whole text matches a regex, with ASCII classes.

    Raises:
        RequestError: the definition uses a feature that cannot be rewritten.
    """
    whole = definition.removeprefix("^")
    if re.search(r"(?<!\\)(?:\\\\)*\$\Z", whole):
        whole = whole[:-1]
    escaped = with_ascii_classes(escaped_regex(whole, ""))
    return _in_call(f"start: TEXT\nTEXT: /{_SLASH.sub(_escaped_slash, escaped)}/")


def _in_call(grammar: str) -> str:
    """The Lark expression for arguments whose input follows a grammar of JSON-escaped text."""
    return f'"{{" "\\"input\\"" ": " "\\"" %lark {{\n{grammar}\n}} "\\"" "}}"'


def _escaped_slash(found: re.Match[str]) -> str:
    return found[1] or r"\/"


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


class _Rewriting:
    """Rewrites one definition, with terminals in place of rules."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._references: dict[str, set[str]] = {}
        self._definition = ""
        self._depth = 0  # of braces
        self._string = ""  # the most recent one
        self._range_from: str | None = None  # the first end of a range, after its dots

    def run(self, definition: str) -> str:
        size = 0
        for piece in _PIECE.finditer(definition):
            rewritten = self._rewritten(piece)
            size += len(rewritten)
            check_rewritten(size)
            self._pieces.append(rewritten)
        if self._depth:
            raise refusal("an unclosed brace", "close it")
        return "".join(self._pieces)

    def check_recursion(self) -> None:
        """Refuse recursive rules, since terminals cannot be recursive."""
        try:
            TopologicalSorter(self._references).prepare()
        except CycleError as error:
            raise refusal(f"the recursive rule {error.args[1][0]}") from None

    def _rewritten(self, piece: re.Match[str]) -> str:
        if piece["refused"] is not None:
            if piece[0] in ('"', "/"):
                raise refusal(f"an unclosed {piece[0]}", "close it, or correct its escapes")
            raise refusal(piece[0])
        if piece["string"] is not None:
            return self._rewritten_string(json.loads(_HEX_ESCAPE.sub(_unicode_escape, piece["string"])), piece["case"])
        if piece["range"] is not None:
            self._range_from = self._string
            while self._pieces and self._pieces[-1].isspace():
                self._pieces.pop()
            del self._pieces[-1:]
            return ""
        if piece["name"] is not None:
            return self._rewritten_name(piece["name"], piece["colon"] or "")
        if piece["brace"] is not None:
            self._depth += 1 if piece["brace"] == "{" else -1
            if self._depth < 0:
                raise refusal("a closing brace without an opening one")
        text = piece[0] if piece["omitted"] is None else ""
        if piece["regex"] is not None:
            text = f"/{escaped_regex(piece['regex'], piece['flags'])}/{piece['flags']}"
        elif piece["imported"] in _COMMON:
            text = f"{piece['alias'] or piece['imported']}: /{escaped_regex(_COMMON[piece['imported']], '')}/"
        return text

    def _rewritten_name(self, name: str, colon: str) -> str:
        if colon:
            name = name.lstrip("!?")  # they affect only Lark's parse trees
            self._definition = name
            self._references.setdefault(name, set())
        else:
            self._references.setdefault(self._definition, set()).add(name)
        return _terminal(name) + colon

    def _rewritten_string(self, string: str, case: str) -> str:
        self._string = string
        if self._range_from is None:
            return _literal(string, case)
        first, self._range_from = self._range_from, None
        return _range(first, string)


def _num_bytes(definition: str) -> int:
    return len(definition.encode(errors="surrogatepass"))


def _terminal(name: str) -> str:
    """The name of the terminal that replaces a rule. Terminals keep their names."""
    return name if name == name.upper() else f"RULE--{name.upper()}"


def _literal(string: str, case: str) -> str:
    escaped = "".join(map(json_escaped, string))
    if case and escaped != string:
        return f"/{escaped_regex(re.escape(string).replace('/', chr(92) + '/'), 'i')}/i"
    return json.dumps(escaped, ensure_ascii=False).replace("\x7f", "\\u007f") + case


def _range(first: str, last: str) -> str:
    if len(first) != 1 or len(last) != 1:
        raise refusal(f"the range {first!r}..{last!r}, whose ends are not single characters,")
    return f"/{escaped_regex(f'[{_code(first)}-{_code(last)}]', '')}/"


def _code(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"


def _unicode_escape(match: re.Match[str]) -> str:
    return match[1] or f"\\u00{match[2]}"
