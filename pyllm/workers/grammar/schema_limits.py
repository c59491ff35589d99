"""Limits on parts of a grammar that are slow to compile and that llguidance does not limit; checked before it compiles.

Finds the JSON schemas in llguidance's texts. Knows nothing else about a grammar.
"""

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from pyllm.errors import RequestError

# `multipleOf` becomes an automaton with a state for each remainder: 250,000 take 1.3 s and 60 MB.
MAX_REMAINDERS = 250_000
# The properties of one object are compared with one another: 5,000 take 2 s.
MAX_PROPERTIES = 5_000
# The patterns of one object are compared, too, and each comparison is a search: 200 take 0.4 s, 400 more than 8 s.
MAX_PATTERNS = 200
# Literals and comments may look like schemas. The time to check one grows with the text before it.
MAX_OTHERS = 100
# Chains of rules or of optional parts cost their length squared: at most some 10 s for this many bytes.
MAX_OTHER_BYTES = 1 << 18

_INLINE = re.compile(r"%json\s*(?=\{)")


def check_schemas(text: str) -> bool:
    """Whether a text is one or more JSON schemas and nothing else.

    Raises:
        RequestError: the text cannot be read, or a schema in it is too large.
    """
    sizes = _Sizes()
    is_schema = False
    if text.lstrip().startswith("{"):
        is_schema, grammars = True, sizes.read(text, len(text) - len(text.lstrip())).get("grammars")
        for part in grammars if isinstance(grammars, list) else []:
            lark = part.get("lark_grammar") if isinstance(part, dict) else None
            if isinstance(lark, str):
                is_schema = False
                sizes.read_inline(lark)
    else:
        sizes.read_inline(text)
    sizes.check()
    if not is_schema and (size := len(text.encode())) > MAX_OTHER_BYTES:
        raise RequestError(f"the grammar has {size} bytes; {MAX_OTHER_BYTES} are most, but for a JSON schema")
    return is_schema


class _NoJsonError(RequestError):
    """A part of the text looks like JSON, but is not."""


class _Sizes:
    """Reads schemas and adds up their sizes. `allOf` and the like may join schemas, so all in a text count together."""

    def __init__(self) -> None:
        self._multiples: set[Decimal] = set()
        self._properties = self._patterns = 0  # sums of squares, like the cost
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object, parse_float=_number)

    def read(self, text: str, start: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._decoder.raw_decode(text, start)[0]
        except RecursionError:
            raise RequestError("the grammar is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise _NoJsonError(f"the grammar has a part that is no JSON: {error}") from None
        except ValueError as error:
            raise RequestError(f"the grammar has a number that cannot be read: {error}") from None
        return found

    def read_inline(self, lark: str) -> None:
        num_others = 0
        for match in _INLINE.finditer(lark):
            try:
                self.read(lark, match.end())
            except _NoJsonError:
                # It is in a literal or a comment; otherwise llguidance refuses it.
                num_others += 1
                if num_others > MAX_OTHERS:
                    raise

    def check(self) -> None:
        for kind, squares, most in (
            ("properties", self._properties, MAX_PROPERTIES),
            ("patternProperties", self._patterns, MAX_PATTERNS),
        ):
            if squares > most**2:
                raise RequestError(
                    f"the grammar's schema has too many {kind}: the numbers of its objects, squared, add up to "
                    f"{squares}; {most**2} is most, which one object of {most} has"
                )
        if self._multiples and self._remainders() > MAX_REMAINDERS:
            listed = ", ".join(
                f"{number:f}" if -9 < number.adjusted() < 20 else str(number) for number in sorted(self._multiples)
            )
            raise RequestError(
                f"multipleOf {listed:.200} would have more than {MAX_REMAINDERS} remainders together, counted in units "
                "of the last decimal place; use smaller or rounder numbers"
            )

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._properties += len(pairs) ** 2
        for name, value in pairs:
            if name == "patternProperties" and isinstance(value, dict):
                self._patterns += len(value) ** 2
            elif name == "multipleOf" and isinstance(value, int | Decimal) and value > 0:
                self._multiples.add(Decimal(value))
        return dict(pairs)

    def _remainders(self) -> float:
        places = max(0, *(-int(number.as_tuple().exponent) for number in self._multiples))
        if places >= 20 or any(number.adjusted() >= 20 for number in self._multiples):
            return math.inf
        return math.lcm(*(int(number.scaleb(places)) for number in self._multiples))


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text:.40} is too large or too small a number") from None
