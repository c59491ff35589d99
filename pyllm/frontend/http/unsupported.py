"""Request fields that pyllm knows and does not support. Only their neutral value passes, which is their default.

Knows no API: each marks such fields in its own structs.
"""

import functools
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from pyllm.errors import RequestError

T = TypeVar("T")

_MARK = {"supported": False}
_INSTEAD = "instead"


def unsupported_field(instead: str | None = None) -> Meta:
    """The mark of such a field; `instead` is the one that does what it would."""
    extra = _MARK if instead is None else {**_MARK, _INSTEAD: instead}
    return Meta(description="Not supported: refused unless neutral.", extra=extra)


Unsupported = Annotated[T | None, unsupported_field()]


def refuse_unsupported(request: Struct, where: str = "") -> None:
    """Refuse every field that is marked and not neutral; `where` is the path of the request within its body.

    Raises:
        RequestError: names the first such field.
    """
    for name, neutral, instead in _neutral_values(type(request)):
        value = getattr(request, name)
        if value is not None and value != neutral:
            remedy = f"use {where}{instead}" if instead else "leave it out"
            raise RequestError(f"{where}{name} is not supported{'' if instead else ' yet'}; {remedy}", f"{where}{name}")


@functools.cache
def _neutral_values(kind: type[Struct]) -> tuple[tuple[str, Any, str | None], ...]:
    """Name and neutral value of each marked field, and what to use instead."""
    return tuple(
        (
            field.name,
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
            mark.extra.get(_INSTEAD),
        )
        for field in msgspec.structs.fields(kind)
        for mark in getattr(field.type, "__metadata__", ())
        if isinstance(mark, Meta) and mark.extra is not None and mark.extra.items() >= _MARK.items()
    )
