"""Decodes a body strictly, except that 150.0 is also an integer, as in JSON Schema. Checks the ranges of numbers.

A body without such numbers is decoded once, as by msgspec alone.
"""

import re
from functools import cache
from typing import Any

import msgspec

from pyllm.parameters.arguments import check_range, declaration_of

_FLOAT_FOR_INTEGER = re.compile(r"Expected `(?:.*[| ])?int(?: \|.*)?`, got `float`(?: - at `\$(.*)`)?")
# A field, or an index of a list or a key of a dict, which stands for all of them.
_KEYS = re.compile(r"\.([^.\[]+)|\[(?:[0-9]+|\.\.\.)\]")
_ANY_KEY = ""
_OUT_OF_RANGE = re.compile(r"Expected `(?:int|float)` [<>]=? \S+ - at `\$\.(\w+)`")


def decode_body(body: bytes, kind: Any) -> Any:
    """The body as this type.

    Raises:
        RequestError: a parameter is outside of its range.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is no JSON, or of another type.
    """
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        return _decode_again(body, kind, error)


def _decode_again(body: bytes, kind: Any, error: msgspec.ValidationError) -> Any:
    """Decode with whole numbers as integers wherever an error is: at most once for each integer field."""
    values = None
    while (match := _FLOAT_FOR_INTEGER.fullmatch(str(error))) is not None:
        if values is None:
            values = msgspec.json.decode(body)
        keys = _KEYS.findall(match[1] or "")
        if not _make_whole(values, keys):
            break
        try:
            return msgspec.convert(values, kind, str_keys=True)
        except msgspec.ValidationError as next_error:
            error = next_error
    if (match := _OUT_OF_RANGE.fullmatch(str(error))) is not None and match[1] in (known := _declarations(kind)):
        values = msgspec.json.decode(body) if values is None else values
        value = values[match[1]]  # the last of this name, if a body has several, and the error may be about another
        if isinstance(value, int | float):
            check_range(match[1], value, known[match[1]])
    raise error


def _make_whole(values: Any, keys: list[str]) -> bool:
    """Make integers of all whole numbers at these keys; return whether there was any."""
    if not keys:
        return False
    places = [values]
    for depth, key in enumerate(keys, 1):
        entries = [(place, at) for place in places for at in _matching(place, key)]
        if depth < len(keys):
            places = [place[at] for place, at in entries]
    whole = [(place, at) for place, at in entries if isinstance(place[at], float) and place[at].is_integer()]
    for place, at in whole:
        place[at] = int(place[at])
    return bool(whole)


def _matching(place: Any, key: str) -> Any:
    if isinstance(place, list):
        return range(len(place)) if key == _ANY_KEY else ()
    if isinstance(place, dict):
        return list(place) if key == _ANY_KEY else (key,) if key in place else ()
    return ()


@cache
def _declarations(kind: Any) -> dict[str, msgspec.Meta]:
    """The fields of a body that have a range."""
    fields = msgspec.structs.fields(kind) if hasattr(kind, "__struct_fields__") else ()
    return {field.name: mark for field in fields if (mark := declaration_of(field.type)) is not None}


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
