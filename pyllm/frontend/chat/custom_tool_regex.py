"""Rewrites a regex, in the syntax of Rust's crate `regex`, to match the JSON-escaped form of a text. Knows no grammar.

Each part that matches one character is rewritten to match that character's JSON form. The rest is unchanged.
"""

import re

from pyllm.errors import RequestError
from pyllm.parameters.structured_outputs_params import MAX_GRAMMAR_BYTES

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_SPECIAL = '"\\' + "".join(map(chr, range(32)))
_PLAIN = r'[^"\\\x00-\x1f]'  # characters that JSON does not escape
_ANY_LONG = "u00(?:0[0-7bef]|1[0-9a-f])"

_CODE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[xuU]\{[0-9a-fA-F]{1,8}\})"
_CATEGORY = r"\\p(?:[LMNSZ]|\{[LMNSZ][a-z]?\})"  # none of them has special characters
_ESCAPE = rf"{_CODE}|{_CATEGORY}|\\(?:[afnrtvdwsDWS]|[^a-zA-Z0-9<>])"
_PART = re.compile(
    rf"""
    (?P<class>\[\^?+(?:{_ESCAPE}|[^\\\[])(?:{_ESCAPE}|[^\\\[\]])*\])
    | (?P<escape>{_ESCAPE})
    | \{{[0-9]*,?[0-9]*\}}  # a repetition
    | (?P<group>\((?:(?!\?)|\?(?:P?<\w+>|(?P<on>[isu]*)(?:-(?P<off>[isu]+))?(?P<end>[:)]))))
    | (?P<refused>\(\?[a-zA-Z]*-?[a-zA-Z]*[:)]? | \\.? | [\[{{^$])
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_REFUSED = {"(": "a group or flags of", "[": "the nested or invalid character class at", "\\": "the escape"}
_REFUSED |= {"{": "a brace that is not a repetition:", "^": "the anchor", "$": "the anchor"}
_SET_OPERATOR = re.compile(r"&&|--|~~")


def json_escaped(char: str) -> str:
    """The character as it is written in a JSON string."""
    if char not in _SPECIAL:
        return char
    return f"\\{_SHORT[char]}" if char in _SHORT else f"\\u{ord(char):04x}"


def escaped_regex(regex: str, flags: str) -> str:
    """A regex that matches the JSON-escaped form of each text that this regex matches under these flags.

    Raises:
        RequestError: the regex uses a feature that cannot be rewritten, or the result is too long.
    """
    if set(flags) & set("xl"):
        raise refusal(f"the flags {flags!r}")
    ignores_case = "i" in flags or re.search(r"\(\?[a-zA-Z]*i", regex) is not None
    matches_lines = ["s" in flags]  # whether a dot matches a line break, in each open group
    parts: list[str] = []
    size = 0
    for part in _PART.finditer(regex):
        text = part[0]
        if part["refused"] is not None:
            raise refusal(f"{_REFUSED[text[0]]} {text}")
        if part["group"] is not None:
            on, off = part["on"] or "", part["off"] or ""
            dot = "s" not in off and ("s" in on or matches_lines[-1])
            if part["end"] == ")":
                matches_lines[-1] = dot
            else:
                matches_lines.append(dot)
        elif text == ")" and len(matches_lines) > 1:
            matches_lines.pop()
        elif text == "." or text in _SPECIAL or part["class"] or part["escape"]:
            text = _one_character(text, matches_lines[-1], ignores_case)
        parts.append(text)
        size += len(text)
        check_rewritten(size)
    return "".join(parts)


def check_rewritten(size: int) -> None:
    """Limit the size of the text written so far, so that rewriting stops early.

    Raises:
        RequestError: it is longer than any grammar may be.
    """
    if size > MAX_GRAMMAR_BYTES:
        raise refusal(f"a definition that grows beyond {MAX_GRAMMAR_BYTES} bytes when rewritten", "shorten it")


def refusal(what: str, advice: str = "leave it out") -> RequestError:
    """The error for a part of a definition that cannot be rewritten. `advice` is a way to change it."""
    text = f"tools: in a custom tool's grammar {what} cannot be used where its input is part of a call"
    return RequestError(f"{text}; {advice}, or name the tool in tool_choice", "tools")


def _one_character(text: str, matches_lines: bool, ignores_case: bool) -> str:
    """A regex for the JSON form of each character that a literal, an escape, a class or the dot matches."""
    specials = _specials(text, matches_lines)
    if not specials:
        return text
    escapes = _escapes(specials)
    if ignores_case:
        escapes = f"(?-i:{escapes})"
    is_set = text == "." or text[0] == "[" or text in (r"\D", r"\W", r"\S", r"\s")
    if not is_set:
        return f"(?:{escapes})"
    return f"(?:{_PLAIN if text == '.' else f'[{text}&&{_PLAIN}]'}|{escapes})"


def _specials(text: str, matches_lines: bool) -> str:
    """The special characters that one part of a regex matches, found by Python's `re`."""
    if text[0] == "[" and _SET_OPERATOR.search(text):
        raise refusal(f"the character class {text}")
    python = re.sub(r"\|+", "|", re.sub(_CATEGORY, "", text))
    python = re.sub(r"\\[xuU]\{([0-9a-fA-F]+)\}", lambda code: rf"\U{code[1]:0>8}", python)
    if python in ("", "[]", "[^]"):
        return _SPECIAL if python == "[^]" else ""
    try:
        pattern = re.compile(python, re.ASCII | (re.DOTALL if matches_lines else 0))
    except (re.error, OverflowError):
        raise refusal(f"the character class or escape {text}") from None
    return "".join(filter(pattern.fullmatch, _SPECIAL))


def _escapes(specials: str) -> str:
    options = [re.escape(_SHORT[char]) for char in sorted(specials) if char in _SHORT]
    long = [f"{ord(char):02x}" for char in sorted(specials) if char not in _SHORT]
    if len(long) == len(_SPECIAL) - len(_SHORT):
        options.append(_ANY_LONG)
    elif long:
        options.append(f"u00(?:{'|'.join(long)})")
    return rf"\\(?:{'|'.join(options)})"
