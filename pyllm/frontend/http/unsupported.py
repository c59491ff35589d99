"""Request fields that pyllm knows and does not support. Only neutral values pass, such as their default.

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
_NEUTRAL = "neutral"


def unsupported_field(instead: str | None = None, *also_neutral: Any) -> Meta:
    """The mark of an unsupported field; `instead` has its effect. `also_neutral` values pass like the default."""
    extra = {**_MARK, _INSTEAD: instead, _NEUTRAL: also_neutral}
    return Meta(description="Not supported: refused unless neutral.", extra=extra)


Unsupported = Annotated[T | None, unsupported_field()]


def is_unsupported(annotation: Any) -> bool:
    """Whether a field of this annotation is marked as unsupported."""
    return _mark_of(annotation) is not None


def refuse_unsupported(request: Struct, where: str = "") -> None:
    """Refuse every field that is marked and not neutral; `where` is the path of the request within its body.

    Raises:
        RequestError: names the first such field.
    """
    for name, neutral, instead in _neutral_values(type(request)):
        value = getattr(request, name)
        if value is not None and value not in neutral:
            remedy = f"use {where}{instead}" if instead else "leave it out"
            raise RequestError(f"{where}{name} is not supported{'' if instead else ' yet'}; {remedy}", f"{where}{name}")


@functools.cache
def _neutral_values(kind: type[Struct]) -> tuple[tuple[str, tuple[Any, ...], str | None], ...]:
    """Name and neutral values of each marked field, and what to use instead."""
    return tuple(
        (
            field.name,
            (
                field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
                *mark[_NEUTRAL],
            ),
            mark[_INSTEAD],
        )
        for field in msgspec.structs.fields(kind)
        if (mark := _mark_of(field.type)) is not None
    )


def _mark_of(annotation: Any) -> dict[str, Any] | None:
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, Meta) and mark.extra is not None and mark.extra.items() >= _MARK.items():
            return mark.extra
    return None
