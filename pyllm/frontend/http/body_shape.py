"""The shapes of request bodies, and which of their fields have no effect.

msgspec skips unknown fields, so this reads the body a second time. It visits objects described by structs only; schemas
and tool arguments are skipped, not parsed. Knows no API.
"""

from functools import cache
from typing import Any

import msgspec
from msgspec import NODEFAULT, Raw, Struct, inspect

from pyllm.frontend.http.ignored_fields import RequestFields, is_refusable

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_NULL = b"null"
MAX_NEUTRAL_BYTES = 64  # No field's default is longer as JSON.


class _HintField(Struct, frozen=True):
    """A field without effect, and its neutral value, which asks for nothing."""

    refusable: bool
    neutral: Any


class _ObjectShape(Struct, frozen=True):
    """An object of one struct: the names of its fields, and those that are hints or may hold structs."""

    names: frozenset[str]
    visited: "tuple[tuple[str, _HintField | _ValueShape], ...]"


class _ValueShape(Struct, frozen=True):
    """A value that may hold structs: an object or a list of them."""

    object: _ObjectShape | None = None
    items: "_ValueShape | None" = None


def find_ignored(body: bytes, kind: type[Struct], fields: RequestFields) -> None:
    """Note every field of a body that its struct does not know, or marks as a hint. Values may be of other types.

    Raises:
        RequestError: the server is strict, and there is such a field.
        UnicodeDecodeError: a field name is not UTF-8; msgspec does not validate names that it skips.
    """
    _look_into_object(_OBJECT.decode(body), _object_shape(kind), "", fields)


def _look_into_object(values: dict[str, Raw], shape: _ObjectShape, prefix: str, fields: RequestFields) -> None:
    if not values.keys() <= shape.names:
        fields.ignore_unknown(prefix, [name for name in values if name not in shape.names])
    for name, field in shape.visited:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(field, _ValueShape):
            _look_into(value, field, prefix + name, fields)
        elif not _is_neutral(value, field):
            fields.ignore_hint(prefix + name, field.refusable)


def _is_neutral(value: Raw, field: _HintField) -> bool:
    text = memoryview(value)
    if len(text) > MAX_NEUTRAL_BYTES:
        return False
    return text == _NULL or (field.neutral is not None and msgspec.json.decode(text) == field.neutral)


def _look_into(raw: Raw, shape: _ValueShape, path: str, fields: RequestFields) -> None:
    first = memoryview(raw)[0]
    if first == ord("{") and shape.object is not None:
        _look_into_object(_OBJECT.decode(raw), shape.object, f"{path}.", fields)
    elif first == ord("[") and shape.items is not None:
        for item in _LIST.decode(raw):
            _look_into(item, shape.items, path, fields)


@cache
def _object_shape(kind: type[Struct]) -> _ObjectShape:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return _shape_of_struct(info)


def _shape_of_struct(info: inspect.StructType) -> _ObjectShape:
    shapes = [(field.encode_name, _hint_field(field) or _value_shape(field.type)) for field in info.fields]
    return _ObjectShape(
        frozenset(field.encode_name for field in info.fields),
        tuple((name, shape) for name, shape in shapes if shape is not None),
    )


def _hint_field(field: inspect.Field) -> _HintField | None:
    extra = field.type.extra if isinstance(field.type, inspect.Metadata) else None
    refusable = is_refusable(extra)
    if refusable is None:
        return None
    return _HintField(refusable, field.default if field.default_factory is NODEFAULT else field.default_factory())


def _value_shape(info: inspect.Type) -> _ValueShape | None:
    if isinstance(info, inspect.Metadata):
        return _value_shape(info.type)
    found: _ObjectShape | None = None
    items: _ValueShape | None = None
    for part in info.types if isinstance(info, inspect.UnionType) else (info,):
        bare = part.type if isinstance(part, inspect.Metadata) else part
        if isinstance(bare, inspect.StructType):
            found = _shape_of_struct(bare)
        elif isinstance(bare, inspect.ListType | inspect.VarTupleType):
            items = _value_shape(bare.item_type)
    return _ValueShape(found, items) if found or items else None
