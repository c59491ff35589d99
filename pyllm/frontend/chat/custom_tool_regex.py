"""Rewrites a regex, in the syntax of Rust's crate `regex`, to match the JSON-escaped form of a text. Knows no grammar.

Each part that matches one character is rewritten to match that character's JSON form. The rest is unchanged.
"""

import re
from collections.abc import Set

from pyllm.errors import RequestError
from pyllm.structured_outputs_params import MAX_GRAMMAR_BYTES

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_SPECIAL = frozenset(map(chr, range(32))) | {'"', "\\"}
_PLAIN = r'[^"\\\x00-\x1f]'  # characters that JSON does not escape
_LONG = frozenset(_SPECIAL - _SHORT.keys())
_ANY_LONG = "u00(?:0[0-7bef]|1[0-9a-f])"

_BLANK = frozenset("\t\n\x0b\x0c\r")
_CONTROLS = {"a": "\x07", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\x0b"}
_GROUP = re.compile(r"\(\?(?:P?<\w+>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)]))")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]{1,8})\})")
_CATEGORY = re.compile(r"\\p(?:[LMNSZ]|\{[LMNSZ][a-z]?\})")
_SET_OPS = ("&&", "--", "~~")
_REPEAT = re.compile(r"\{[0-9]*,?[0-9]*\}")


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
    return _Rewriting(regex, flags).run()


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


class _Rewriting:
    """Reads one regex from left to right."""

    def __init__(self, regex: str, flags: str) -> None:
        self._regex = regex
        self._position = 0
        self._matches_lines = "s" in flags  # whether a dot matches a line break
        self._ignores_case = "i" in flags or re.search(r"\(\?[a-zA-Z]*i", regex) is not None
        self._outer: list[bool] = []
        if set(flags) & set("xl"):
            raise refusal(f"the flags {flags!r}")

    def run(self) -> str:
        parts: list[str] = []
        size = 0
        while self._position < len(self._regex):
            parts.append(self._next())
            size += len(parts[-1])
            check_rewritten(size)
        return "".join(parts)

    def _next(self) -> str:
        char = self._regex[self._position]
        match char:
            case "(":
                return self._open()
            case "[":
                return self._class()
            case "{":
                return self._repeat()
            case "\\":
                specials, has_plain, text = self._escape()
                return self._of(specials, text if has_plain else "")
        self._position += 1
        match char:
            case ".":
                return self._of(_SPECIAL if self._matches_lines else _SPECIAL - {"\n"}, ".")
            case ")" if self._outer:
                self._matches_lines = self._outer.pop()
            case "^" | "$":
                raise refusal(f"the anchor {char}")
        return self._of(frozenset(char), "") if char in _SPECIAL else char

    def _repeat(self) -> str:
        match = _REPEAT.match(self._regex, self._position)
        if match is None:
            raise refusal("a brace that is not a repetition")
        self._position = match.end()
        return match[0]

    def _open(self) -> str:
        """The opening of a group, or flags for the rest of the current group."""
        self._outer.append(self._matches_lines)
        if not self._regex.startswith("(?", self._position):
            self._position += 1
            return "("
        match = _GROUP.match(self._regex, self._position)
        if match is None:
            raise refusal("a group of this kind")
        self._position = match.end()
        set_flags, unset_flags = match[1] or "", match[2] or ""
        if set(set_flags + unset_flags) - set("isu"):
            raise refusal(f"the flags of {match[0]!r}")
        if match[3] == ")":
            self._outer.pop()
        self._matches_lines = "s" not in unset_flags and ("s" in set_flags or self._matches_lines)
        return match[0]

    def _class(self) -> str:
        """A character class without nested classes."""
        regex, begin = self._regex, self._position
        self._position += 1
        negated = regex.startswith("^", self._position)
        self._position += int(negated)
        specials: set[str] = set()
        has_plain = negated
        items = 0
        while items == 0 or not regex.startswith("]", self._position):
            items += 1
            found, plain = self._items()
            specials |= found
            has_plain = has_plain or plain
        self._position += 1
        return self._of(
            _SPECIAL - specials if negated else frozenset(specials), regex[begin : self._position] * has_plain
        )

    def _items(self) -> tuple[Set[str], bool]:
        """The special characters in the next item or range of a class, and whether it has other characters."""
        regex = self._regex
        if regex[self._position : self._position + 2] in _SET_OPS or regex[self._position : self._position + 1] in (
            "",
            "[",
        ):
            raise refusal("a nested or invalid character class")
        low = self._item()
        if not isinstance(low, str):
            return low
        if not regex.startswith("-", self._position) or regex.startswith("-]", self._position):
            return {low} & _SPECIAL, low not in _SPECIAL
        self._position += 1
        high = self._item()
        if not isinstance(high, str) or high < low:
            raise refusal("a nested or invalid character class")
        within = {char for char in _SPECIAL if low <= char <= high}
        return within, ord(high) - ord(low) + 1 > len(within)

    def _item(self) -> str | tuple[Set[str], bool]:
        """One character of a class; for an escape of several, its special ones and whether it has others."""
        if not self._regex.startswith("\\", self._position):
            self._position += 1
            return self._regex[self._position - 1 : self._position]
        specials, has_plain, text = self._escape()
        code = _CODE.fullmatch(text)
        if code is not None:
            return _char(code)
        if len(text) == 2 and text[1] not in "dwsDWS":
            return _CONTROLS.get(text[1], text[1])
        return specials, has_plain

    def _escape(self) -> tuple[frozenset[str], bool, str]:
        """The special characters that an escape matches, whether it matches other characters, and its text."""
        regex, begin = self._regex, self._position
        for pattern in (_CODE, _CATEGORY):
            match = pattern.match(regex, begin)
            if match is not None:
                self._position = match.end()
                if pattern is _CATEGORY:
                    return frozenset(), True, match[0]
                char = _char(match)
                return frozenset(char) & _SPECIAL, char not in _SPECIAL, match[0]
        text = regex[begin : begin + 2]
        self._position += 2
        kind = text[1:]
        if kind in ("d", "w"):
            return frozenset(), True, text
        if kind in ("D", "W"):
            return _SPECIAL, True, text
        if kind in ("s", "S"):
            return _BLANK if kind == "s" else _SPECIAL - _BLANK, True, text
        char = _CONTROLS.get(kind, kind)
        if kind not in _CONTROLS and (not kind or kind.isalnum() or kind in "<>"):
            raise refusal(f"the escape {text}")
        return frozenset(char) & _SPECIAL, char not in _SPECIAL, text

    def _of(self, specials: frozenset[str], plain: str) -> str:
        """A regex for the JSON forms of `specials` and for the unescaped characters that `plain` matches."""
        options = []
        if plain == ".":
            options.append(_PLAIN)
        elif plain:
            options.append(f"[{plain}&&{_PLAIN}]" if specials else plain)
        if specials:
            escapes = _escapes(specials)
            options.append(f"(?-i:{escapes})" if self._ignores_case else escapes)
        return options[0] if len(options) == 1 and not specials else f"(?:{'|'.join(options)})"


def _escapes(specials: frozenset[str]) -> str:
    options = [re.escape(_SHORT[char]) for char in sorted(specials & _SHORT.keys())]
    long = specials & _LONG
    if long == _LONG:
        options.append(_ANY_LONG)
    elif long:
        options.append(f"u00(?:{'|'.join(f'{ord(char):02x}' for char in sorted(long))})")
    return rf"\\(?:{'|'.join(options)})"


def _char(code: re.Match[str]) -> str:
    try:
        return chr(int(code[1] or code[2] or code[3] or code[4], 16))
    except (ValueError, OverflowError):
        raise refusal(f"the character {code[0]}") from None
