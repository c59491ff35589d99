r"""Rewrites the classes of regular expressions: `\d \w \s \D \W \S` to match ASCII only, or all to lack U+0000.

It knows the syntax of Rust's crate `regex`, which llguidance reads. Other errors are left for the compiler.
"""

import re
from typing import NamedTuple

from pyllm.errors import RequestError

# Reading takes about 2 µs a character at worst.
MAX_REWRITTEN_BYTES = 1 << 16

_POSIX = {
    r"\d": "[:digit:]",
    r"\D": "[:^digit:]",
    r"\w": "[:word:]",
    r"\W": "[:^word:]",
    r"\s": "[:space:]",
    r"\S": "[:^space:]",
}


def with_ascii_classes(regex: str) -> str:
    r"""The expression in which `\d` is `[0-9]`, `\w` is `[0-9A-Za-z_]` and `\s` is `[ \t\n\r\f\v]`.

    After the flag `u` the classes match Unicode. In the mode `x` whitespace and comments become a space: llguidance
    escapes line breaks, and an escaped one would end no comment. Takes time linear in the text.

    Raises:
        RequestError: a class begins or ends a range, or the text is too long.
    """
    if not _NEEDS_REWRITING.search(regex):
        return regex
    if (size := len(regex.encode())) > MAX_REWRITTEN_BYTES:
        text = f"a regex with classes as \\d or the flag x must be at most {MAX_REWRITTEN_BYTES} bytes, got {size}"
        raise RequestError(f"structured_outputs: {text}", "structured_outputs")
    return _Rewriter(regex).whole()


def without_nul(pattern: str) -> str | None:
    """A schema's pattern with classes that lack U+0000; None if it names that outside of classes, or is too long.

    llguidance allows every escape of JSON for a class that has all control characters, or all but the line break: for
    `^[^"]+$` an escaped quotation mark. Takes time linear in the text.
    """
    if not _HAS_CLASS.search(pattern):
        return pattern
    if len(pattern) > MAX_REWRITTEN_BYTES:
        return None
    rewriter = _Rewriter(pattern, lacks_nul=True)
    text = rewriter.whole()
    return None if rewriter.has_nul else text


class _Flags(NamedTuple):
    """`verbose` is the flag `x`, `unicode` an explicit flag `u`."""

    verbose: bool = False
    unicode: bool = False

    def changed(self, on: str, off: str) -> "_Flags":
        return _Flags(
            "x" in on or (self.verbose and "x" not in off),
            "u" in on or (self.unicode and "u" not in off),
        )


class _Rewriter:
    """Reads a text once, from left to right. The last of `_groups` are the flags in force.

    With `lacks_nul` classes lose U+0000, else characters beyond ASCII. `has_nul`: the text names U+0000 elsewhere.
    """

    def __init__(self, text: str, *, lacks_nul: bool = False) -> None:
        self.has_nul = False
        self._lacks_nul = lacks_nul
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._groups = [_Flags()]

    def whole(self) -> str:
        while self._at < len(self._text):
            self._copy_gap()
            piece = self._next(_VERBOSE_PIECE if self._groups[-1].verbose else _PIECE)
            if piece == "[":
                self._at -= 1
                self._set()
            elif self._lacks_nul and piece in _CODED:
                self._at -= len(piece)
                self._coded()
            else:
                self.has_nul |= "\0" in piece
                self._follow_groups(piece)
                posix = self._posix(piece)
                # The flag `i` would add the Kelvin sign, which is a k, and the long s.
                self._out.append(f"(?-i:[{posix}])" if posix else piece)
        return "".join(self._out)

    def _follow_groups(self, piece: str) -> None:
        if flags := _FLAGS.fullmatch(piece):
            changed = self._groups[-1].changed(flags["on"], flags["off"] or "")
            if flags["end"] == ":":
                self._groups.append(changed)
            else:
                self._groups[-1] = changed
        elif piece.startswith("("):
            self._groups.append(self._groups[-1])
        elif piece == ")" and len(self._groups) > 1:
            self._groups.pop()

    def _set(self) -> None:
        """Copy a class in brackets."""
        start = len(self._out)
        self._brackets()
        text = "".join(self._out[start:])
        self._out[start:] = [f"[{text}--\\x00]" if self._lacks_nul and _MAY_HAVE_NUL.search(text) else text]

    def _coded(self) -> None:
        """Copy a character that stands by its number, or a class of Unicode."""
        item = self._next(_ITEM)
        self.has_nul |= _NUL.fullmatch(item) is not None
        self._out.append(f"[{item}--\\x00]" if item[1:2] in ("p", "P") else item)

    def _brackets(self) -> None:
        opening = _VERBOSE_OPENING if self._groups[-1].verbose else _OPENING
        depth = 0
        while self._at < len(self._text):
            self._copy_gap()
            if depth and (known := self._next(_NAMED_CLASS) or self._next(_OPERATOR)):
                self._out.append(known)
            elif opened := self._next(opening):
                self._out.append(_GAP.sub(" ", opened) if self._groups[-1].verbose else opened)
                depth += 1
            elif self._text.startswith("]", self._at):
                self._out.append("]")
                self._at += 1
                depth -= 1
                if depth == 0:
                    return
            else:
                self._bracket_item()

    def _bracket_item(self) -> None:
        """Copy a character, a class, or a range of characters."""
        first = self._next(_ITEM)
        is_range = _VERBOSE_RANGE if self._groups[-1].verbose else _RANGE
        if not is_range.match(self._text, self._at):
            self._out.append(self._posix(first) or first)
            return
        self._out.append(first)
        self._copy_gap()
        self._out.append("-")
        self._at += 1
        self._copy_gap()
        last = self._next(_ITEM)
        if not self._lacks_nul and (first in _POSIX or last in _POSIX):
            text = f"regex has an invalid range {first}-{last}; write the hyphen first, last or as \\-"
            raise RequestError(f"structured_outputs: {text}", "structured_outputs")
        self._out.append(last)

    def _posix(self, piece: str) -> str:
        """The ASCII class that replaces this piece, or ''."""
        return "" if self._lacks_nul or self._groups[-1].unicode else _POSIX.get(piece, "")

    def _copy_gap(self) -> None:
        if self._groups[-1].verbose and self._next(_GAP):
            self._out.append(" ")

    def _next(self, pattern: re.Pattern[str]) -> str:
        """Consume and return a match of this pattern, or ''."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]


# None of these looks beyond the next backslash, bracket or line break, so the whole takes linear time.
_NEEDS_REWRITING = re.compile(r"\\[dDwWsS]|\(\?[A-Za-z]*x")
_HAS_CLASS = re.compile(r"\[|\\[pPxuU]|\0")
_MAY_HAVE_NUL = re.compile(r"[\^\\\0]|\[:")
_CODED = frozenset(rf"\{letter}" for letter in "pPxuU")
_NUL = re.compile(r"\\[xuU](?:0+|\{0+\})")
_WHITESPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_ANY_GAP = rf"(?:[{_WHITESPACE}]|#[^\n]*+\n?)*+"
_GAP = re.compile(rf"(?:[{_WHITESPACE}]|#[^\n]*+\n?)++")
_FLAGS = re.compile(r"\(\?(?P<on>[A-Za-z]*+)(?:-(?P<off>[A-Za-z]*+))?(?P<end>[:)])")
_GROUP = r"\(\?[A-Za-z]*+(?:-[A-Za-z]*+)?[:)]|\(\?P?<[^>()\\]*+>"
_PIECE = re.compile(rf"\\.|{_GROUP}|[^\\()\[]++|.", re.DOTALL)
_VERBOSE_PIECE = re.compile(rf"\\.|{_GROUP}|[^\\()\[#{_WHITESPACE}]++|.|", re.DOTALL)
_ITEM = re.compile(
    r"\\[pPxuU]\{[^\\{}]*+\}|\\(?:[pP].|x..|u.{4}|U.{8}|.)|.",
    re.DOTALL,
)
_NAMED_CLASS = re.compile(r"\[:\^?[a-z]++:\]")
_OPERATOR = re.compile(r"&&|--|~~")
_OPENING = re.compile(r"\[\^?(?:\]|-*+)")
_VERBOSE_OPENING = re.compile(rf"\[{_ANY_GAP}\^?{_ANY_GAP}(?:\]|(?:-{_ANY_GAP})*+)")
_RANGE = re.compile(r"-(?![-\]]|\Z)")
_VERBOSE_RANGE = re.compile(rf"{_ANY_GAP}-{_ANY_GAP}(?![-\]]|\Z)")
