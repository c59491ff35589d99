"""A regular expression, in the syntax of Rust's, over the JSON form of a text. Knows no grammar.

What matches one character is written as what matches its JSON form; all else stays as it is.
"""

import re
from collections.abc import Set

from pyllm.errors import RequestError

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_SPECIAL = frozenset(map(chr, range(32))) | {'"', "\\"}
_PLAIN = r'[^"\\\x00-\x1f]'  # what stands for itself in JSON
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
    """One character as JSON has it in a string."""
    if char not in _SPECIAL:
        return char
    return f"\\{_SHORT[char]}" if char in _SHORT else f"\\u{ord(char):04x}"


def escaped_regex(regex: str, flags: str) -> str:
    """An expression for the JSON form of what this one matches under these flags.

    Raises:
        RequestError: it uses what cannot be written so.
    """
    return _Rewriting(regex, flags).run()


class _Rewriting:
    """Goes through one expression from its beginning to its end."""

    def __init__(self, regex: str, flags: str) -> None:
        self._regex = regex
        self._place = 0
        self._matches_lines = "s" in flags  # whether a dot matches a line's end
        self._ignores_case = "i" in flags or re.search(r"\(\?[a-zA-Z]*i", regex) is not None
        self._outer: list[bool] = []
        if set(flags) & set("xl"):
            raise _refusal(f"the flags {flags!r}")

    def run(self) -> str:
        parts = []
        while self._place < len(self._regex):
            parts.append(self._next())
        return "".join(parts)

    def _next(self) -> str:
        char = self._regex[self._place]
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
        self._place += 1
        match char:
            case ".":
                return self._of(_SPECIAL if self._matches_lines else _SPECIAL - {"\n"}, ".")
            case ")" if self._outer:
                self._matches_lines = self._outer.pop()
            case "^" | "$":
                raise _refusal(f"the anchor {char}")
        return self._of(frozenset(char), "") if char in _SPECIAL else char

    def _repeat(self) -> str:
        match = _REPEAT.match(self._regex, self._place)
        if match is None:
            raise _refusal("a brace that is no repetition")
        self._place = match.end()
        return match[0]

    def _open(self) -> str:
        """The beginning of a group, or flags for the rest of one."""
        self._outer.append(self._matches_lines)
        if not self._regex.startswith("(?", self._place):
            self._place += 1
            return "("
        match = _GROUP.match(self._regex, self._place)
        if match is None:
            raise _refusal("a group of this kind")
        self._place = match.end()
        set_flags, unset_flags = match[1] or "", match[2] or ""
        if set(set_flags + unset_flags) - set("isu"):
            raise _refusal(f"the flags of {match[0]!r}")
        if match[3] == ")":
            self._outer.pop()
        self._matches_lines = "s" not in unset_flags and ("s" in set_flags or self._matches_lines)
        return match[0]

    def _class(self) -> str:
        """A class of characters, which has no other one in it."""
        regex, begin = self._regex, self._place
        self._place += 1
        negated = regex.startswith("^", self._place)
        self._place += int(negated)
        specials: set[str] = set()
        has_plain = negated
        items = 0
        while items == 0 or not regex.startswith("]", self._place):
            items += 1
            found, plain = self._items()
            specials |= found
            has_plain = has_plain or plain
        self._place += 1
        return self._of(_SPECIAL - specials if negated else frozenset(specials), regex[begin : self._place] * has_plain)

    def _items(self) -> tuple[Set[str], bool]:
        """The special characters of the next part of a class, and whether it has others."""
        regex = self._regex
        if regex[self._place : self._place + 2] in _SET_OPS or regex[self._place : self._place + 1] in ("", "["):
            raise _refusal("a class of characters that is not plain")
        low = self._item()
        if not isinstance(low, str):
            return low
        if not regex.startswith("-", self._place) or regex.startswith("-]", self._place):
            return {low} & _SPECIAL, low not in _SPECIAL
        self._place += 1
        high = self._item()
        if not isinstance(high, str) or high < low:
            raise _refusal("a class of characters that is not plain")
        within = {char for char in _SPECIAL if low <= char <= high}
        return within, ord(high) - ord(low) + 1 > len(within)

    def _item(self) -> str | tuple[Set[str], bool]:
        """A character of a class; or which special characters an escape has, and whether it has others."""
        if not self._regex.startswith("\\", self._place):
            self._place += 1
            return self._regex[self._place - 1 : self._place]
        specials, has_plain, text = self._escape()
        code = _CODE.fullmatch(text)
        if code is not None:
            return _char(code)
        if len(text) == 2 and text[1] not in "dwsDWS":
            return _CONTROLS.get(text[1], text[1])
        return specials, has_plain

    def _escape(self) -> tuple[frozenset[str], bool, str]:
        """The special characters that an escape matches, whether it matches others, and the escape."""
        regex, begin = self._regex, self._place
        for pattern in (_CODE, _CATEGORY):
            match = pattern.match(regex, begin)
            if match is not None:
                self._place = match.end()
                if pattern is _CATEGORY:
                    return frozenset(), True, match[0]
                char = _char(match)
                return frozenset(char) & _SPECIAL, char not in _SPECIAL, match[0]
        text = regex[begin : begin + 2]
        self._place += 2
        kind = text[1:]
        if kind in ("d", "w"):
            return frozenset(), True, text
        if kind in ("D", "W"):
            return _SPECIAL, True, text
        if kind in ("s", "S"):
            return _BLANK if kind == "s" else _SPECIAL - _BLANK, True, text
        char = _CONTROLS.get(kind, kind)
        if kind not in _CONTROLS and (not kind or kind.isalnum() or kind in "<>"):
            raise _refusal(f"the escape {text}")
        return frozenset(char) & _SPECIAL, char not in _SPECIAL, text

    def _of(self, specials: frozenset[str], plain: str) -> str:
        """What matches the JSON forms of these, and of what else an expression for one character matches."""
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
        raise _refusal(f"the character {code[0]}") from None


def _refusal(what: str) -> RequestError:
    text = f"tools: in a custom tool's grammar {what} cannot be used where its input is part of a call"
    return RequestError(f"{text}; write it otherwise, or name the tool in tool_choice", "tools")
