"""A custom tool's Lark grammar as it must be inside of a call, where the input is a JSON string. Compiles nothing.

JSON writes each character by itself, so it is enough to write each literal and regular expression in its JSON form:
`\\n` and its like where there is one, `\\u001f` for other control characters. All of it becomes one terminal, since
llguidance's lexer looks back by one byte: before an escape it could not end a terminal that may go on with another.
"""

import json
import re

from pyllm.errors import RequestError
from pyllm.frontend.input_regex import escaped_regex, json_escaped

_PIECE = re.compile(
    r"""
    (?P<left_out>(?:\#|//)[^\n]*|->[ \t]*[\w-]+)  # comments, and the names of alternatives
    | (?P<string>"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4}|x[a-fA-F0-9]{2})|[^"\\\x00-\x1f\x7f])*")(?P<case>i?)
    | /(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[imslux]*)
    | %import[ \t]+common\.(?P<imported>[A-Z_]+)(?:[ \t]*->[ \t]*(?P<alias>[A-Z_][A-Z0-9_-]*))?
    | (?P<refused>%\w*|<[^<>\s]+>|@[\w-]+|::|~(?![ \t]*[0-9]))
    | (?P<range>\.\.)
    | (?P<brace>[{}])
    | (?P<name>[!?_]{0,3}[A-Za-z][\w-]*)(?P<colon>[ \t]*:)?
    | [0-9]+(?:\.\.[0-9]+)? | [ \t]+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
_HEX_ESCAPE = re.compile(r"(\\\\)|\\x(..)")

# A class of characters becomes some hundred bytes.
MAX_DEFINITION_BYTES = 1 << 16

# Those of Lark's common terminals that match what JSON escapes; others are the same within a string.
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
    """What stands in a Lark grammar for `{"input": ...}`, whose text follows this definition.

    Raises:
        RequestError: the definition uses what cannot be written so, such as recursion or a special token.
    """
    size = len(definition.encode(errors="surrogatepass"))
    if size > MAX_DEFINITION_BYTES:
        raise _refusal(f"a text of {size} bytes, where {MAX_DEFINITION_BYTES} are most,")
    rewriting = _Rewriting()
    lark = rewriting.run(definition)
    rewriting.check_recursion()
    return f'"{{" "\\"input\\"" ": " "\\"" %lark {{\nstart: {_terminal("start")}\n{lark}\n}} "\\"" "}}"'


class _Rewriting:
    """Writes one definition anew, with terminals in place of rules."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._references: dict[str, set[str]] = {}
        self._definition = ""
        self._depth = 0  # of braces
        self._string = ""  # the last one
        self._range_from: str | None = None  # once its dots have come

    def run(self, definition: str) -> str:
        for piece in _PIECE.finditer(definition):
            self._pieces.append(self._written(piece))
        if self._depth:
            raise _refusal("a brace that nothing closes")
        return "".join(self._pieces)

    def check_recursion(self) -> None:
        """Refuse a rule that leads to itself: terminals cannot."""
        done: set[str] = set()
        for name in self._references:
            path = [(name, iter(self._references[name]))]
            on_path = {name}
            while path and name not in done:
                following = next(path[-1][1], None)
                if following is None:
                    left, _ = path.pop()
                    on_path.discard(left)
                    done.add(left)
                elif following in on_path:
                    raise _refusal(f"the rule {following}, which leads to itself,")
                elif following in self._references and following not in done:
                    on_path.add(following)
                    path.append((following, iter(self._references[following])))

    def _written(self, piece: re.Match[str]) -> str:
        if piece["refused"] is not None:
            raise _refusal(piece[0])
        if piece["string"] is not None:
            return self._of_string(json.loads(_HEX_ESCAPE.sub(_unicode_escape, piece["string"])), piece["case"])
        if piece["range"] is not None:
            self._range_from = self._string
            while self._pieces and self._pieces[-1].isspace():
                self._pieces.pop()
            del self._pieces[-1:]
            return ""
        if piece["name"] is not None:
            return self._of_name(piece["name"], piece["colon"] or "")
        if piece["brace"] is not None:
            self._depth += 1 if piece["brace"] == "{" else -1
            if self._depth < 0:
                raise _refusal("a brace that nothing opens")
        text = piece[0] if piece["left_out"] is None else ""
        if piece["regex"] is not None:
            text = f"/{escaped_regex(piece['regex'], piece['flags'])}/{piece['flags']}"
        elif piece["imported"] in _COMMON:
            text = f"{piece['alias'] or piece['imported']}: /{escaped_regex(_COMMON[piece['imported']], '')}/"
        return text

    def _of_name(self, name: str, colon: str) -> str:
        if colon:
            name = name.lstrip("!?")  # marks of what Lark's trees are made of
            self._definition = name
            self._references.setdefault(name, set())
        else:
            self._references.setdefault(self._definition, set()).add(name)
        return _terminal(name) + colon

    def _of_string(self, string: str, case: str) -> str:
        self._string = string
        if self._range_from is None:
            return _literal(string, case)
        first, self._range_from = self._range_from, None
        return _range(first, string)


def _terminal(name: str) -> str:
    """The terminal that a rule becomes; terminals keep their names."""
    return name if name == name.upper() else f"RULE--{name.upper()}"


def _literal(string: str, case: str) -> str:
    escaped = "".join(map(json_escaped, string))
    if case and escaped != string:
        return f"/{escaped_regex(re.escape(string).replace('/', chr(92) + '/'), 'i')}/i"
    return json.dumps(escaped, ensure_ascii=False).replace("\x7f", "\\u007f") + case


def _range(first: str, last: str) -> str:
    if len(first) != 1 or len(last) != 1:
        raise _refusal(f"the range {first!r}..{last!r}, whose ends must be one character")
    return f"/{escaped_regex(f'[{_code(first)}-{_code(last)}]', '')}/"


def _code(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"


def _unicode_escape(match: re.Match[str]) -> str:
    return match[1] or f"\\u00{match[2]}"


def _refusal(what: str) -> RequestError:
    text = f"tools: in a custom tool's grammar {what} cannot be used where its input is part of a call"
    return RequestError(f"{text}; leave it out, or name the tool in tool_choice", "tools")
