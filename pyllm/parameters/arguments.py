"""Converts arguments of Python calls to the expected types, or refuses them by name. Knows no request.

Numbers of numpy become Python's. A bool does not count as a number.
"""

import math
import numbers
import reprlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from pyllm.config.nearest_name import NEAR_NAMES, PEER_NAMES, nearest_name
from pyllm.errors import Field, RequestError, UnknownParameterError, root_of

Kind = TypeVar("Kind")

MAX_SHOWN_BITS = 256
_UNEXPECTED = "Unexpected keyword argument "

_ALLOWED = "allowed"
_NUMPY_BOOLS = {("numpy", "bool"), ("numpy", "bool_")}


class _Shown(reprlib.Repr):
    """Short representations; long integers, which Python refuses to print, are shown by their number of bits."""

    def repr_int(self, value: int, level: int) -> str:
        is_long = value.bit_length() > MAX_SHOWN_BITS
        return f"a number of {value.bit_length()} bits" if is_long else super().repr_int(value, level)


_SHOWN = _Shown()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 80


class NamedParameters(msgspec.StructMeta):
    """The metaclass of parameters; for an unknown name, their constructor suggests the closest one."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Make the parameters.

        Raises:
            UnknownParameterError: a name is no parameter.
        """
        try:
            return super().__call__(*args, **keywords)
        except TypeError as error:
            if not str(error).startswith(_UNEXPECTED):
                raise
            known = self.__struct_fields__
            unknown = [name for name in keywords if name not in known]
        texts = [f"{self.__name__} has no {name!r}{_meant(name, known)}" for name in unknown]
        raise UnknownParameterError("; ".join(texts), unknown[0])


def check(name: str, value: object, holds: bool, allowed: str | tuple[str, ...]) -> None:
    """Refuse a value of a request by its name unless the condition `holds`; `allowed` describes the allowed values.

    It may be in parts, as the message of a `RequestError`.

    Raises:
        RequestError: the condition does not hold.
    """
    if not holds:
        allowed = (allowed,) if isinstance(allowed, str) else allowed
        got = value if isinstance(value, str) else shown(value)
        raise RequestError((Field(name), " must be ", *allowed, f", got {got}"), name)


def declared(
    text: str, allowed: str = "", *, ge: float | None = None, gt: float | None = None, le: float | None = None
) -> Meta:
    """The declaration of a parameter: its text, and its bounds by msgspec's names.

    `allowed` describes the range in errors, where its numbers do not say all.
    """
    extra = {_ALLOWED: allowed} if allowed else None
    if gt is not None:
        return Meta(description=text, extra=extra, gt=gt, le=le)
    return Meta(description=text, extra=extra, ge=ge, le=le)


def declaration_of(annotation: Any) -> Meta | None:
    """The declaration in the type of a field, if it has bounds."""
    return next((mark for mark in _marks(annotation) if not mark.ge is mark.gt is mark.le is None), None)


def check_range(name: str, value: Any, declaration: Meta) -> None:
    """Refuse a number outside of its declared range; NaN is outside of each.

    Raises:
        RequestError: with the range.
    """
    least, above, most = declaration.ge, declaration.gt, declaration.le
    holds = (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)
    check(name, value, holds, (declaration.extra or {}).get(_ALLOWED) or _range(least, above, most))


class NumberReader:
    """Reads the numbers and flags of structs of one `kind` by the types of its fields, except those of `names`.

    Numbers of numpy become Python's.
    """

    def __init__(self, kind: type[msgspec.Struct], names: Collection[str] = ()) -> None:
        self._readers = {
            name: (types, read)
            for name, own in get_type_hints(kind).items()
            for annotation, types, read in _NUMBERS
            if own == annotation and name not in names
        }
        self._values_of = attrgetter(*self._readers)
        # Types of values that need no reading. Servers make parameters for each request, nearly all of them such.
        self._right: set[tuple[type, ...]] = set()

    def read(self, params: msgspec.Struct) -> None:
        """Set the values of other types to those that they stand for.

        Raises:
            RequestError: a value is neither a number nor a flag.
        """
        if tuple(map(type, self._values_of(params))) in self._right:
            return
        for name, (types, read) in self._readers.items():
            if type(value := getattr(params, name)) not in types:
                msgspec.structs.force_setattr(params, name, read(name, value))
        self._right.add(tuple(map(type, self._values_of(params))))


class RangeChecks:
    """Checks the numbers of structs that have fields with the names of those of `kind`, by the ranges declared there.

    msgspec checks all of them in one call, as each request has them checked several times.
    """

    def __init__(self, kind: type[msgspec.Struct], names: Iterable[str] | None = None) -> None:
        fields = [field for field in msgspec.structs.fields(kind) if names is None or field.name in names]
        found = [(field.name, field.type, mark) for field in fields if (mark := declaration_of(field.type)) is not None]
        self._declarations = {name: mark for name, _, mark in found}
        self._kind = msgspec.defstruct("Numbers", [(name, kind) for name, kind, _ in found], gc=False)

    def check(self, params: msgspec.Struct) -> None:
        """Refuse the first number outside of its range.

        Raises:
            RequestError: with the parameter's name and the range.
        """
        try:
            msgspec.convert(params, self._kind, from_attributes=True)
        except msgspec.ValidationError:
            for name, declaration in self._declarations.items():
                if (value := getattr(params, name)) is not None:
                    check_range(name, value, declaration)
            raise


def refuse(name: str, value: object, expected: str) -> NoReturn:
    """Raise a RequestError for an argument that is not what is `expected`.

    `name` may be a path into the argument, such as `messages[0].content`.
    """
    raise RequestError(f"{name} must be {expected}, got {shown(value)}", root_of(name))


def shown(value: object) -> str:
    """A short representation of a value, for errors."""
    return value.name if isinstance(value, Enum) else _SHOWN.repr(value)


def integer(name: str, value: object) -> int:
    """A whole number; raises RequestError for anything else."""
    if type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool)):
        return int(value)
    refuse(name, value, "a whole number")


def number(name: str, value: object) -> float:
    """A number that is no NaN; raises RequestError for anything else."""
    if type(value) is float or (isinstance(value, numbers.Real) and not isinstance(value, bool)):
        try:
            read = float(value)
        except OverflowError:
            refuse(name, value, "a number within a float's range")
        if not math.isnan(read):
            return read
    refuse(name, value, "a number")


def flag(name: str, value: object) -> bool:
    """True or False, also from numpy; raises RequestError for anything else."""
    if isinstance(value, bool) or (type(value).__module__, type(value).__name__) in _NUMPY_BOOLS:
        return bool(value)
    refuse(name, value, "True or False")


def text(name: str, value: object) -> str:
    """A text of Unicode; raises RequestError for anything else."""
    if not isinstance(value, str):
        refuse(name, value, "a text")
    if not is_unicode(value):
        refuse(name, value, "a text without half of a surrogate pair, which is no character")
    return value


def texts(name: str, value: object) -> Sequence[str]:
    """A list of texts; raises RequestError for anything else, also for a single text."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        refuse(name, value, "a list of texts")
    for each in value:
        text(name, each)
    return value


def is_unicode(value: str) -> bool:
    """Whether a text can be sent: one with half of a surrogate pair cannot."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def token_ids(name: str, value: object) -> Sequence[int]:
    """Token ids, also from a numpy array or a tensor of one dimension; does not check their range.

    Raises:
        RequestError: the value is anything else.
    """
    value = as_list(value)
    if isinstance(value, Set):
        value = list(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        kinds = set(map(type, value))
        if kinds <= {int}:
            return value
        if all(issubclass(kind, numbers.Integral) and not issubclass(kind, bool) for kind in kinds):
            return list(map(int, value))
        odd = next(each for each in value if not isinstance(each, numbers.Integral) or isinstance(each, bool))
        raise RequestError(f"{name} must be a list of token ids, got one with {shown(odd)}", root_of(name))
    refuse(name, value, "a list of token ids")


# The types of fields, those of their values, and the function that reads another value.
_NUMBERS: tuple[tuple[Any, frozenset[type], Callable[[str, object], object]], ...] = (
    (int, frozenset({int}), integer),
    (int | None, frozenset({int, NoneType}), integer),
    (float, frozenset({float}), number),
    (float | None, frozenset({float, NoneType}), number),
    (bool, frozenset({bool}), flag),
)


def mapping(name: str, value: object) -> Mapping[Any, Any]:
    """A dict or another mapping; raises RequestError for anything else."""
    return value if type(value) is dict or isinstance(value, Mapping) else refuse(name, value, "a dict")


def instance(name: str, value: object, kind: type[Kind]) -> Kind:
    """An object of a class of pyllm; raises RequestError for anything else."""
    return value if isinstance(value, kind) else refuse(name, value, f"a {kind.__name__}")


def as_list(value: Any) -> Any:
    """The list of an array or a tensor with dimensions, other values unchanged; loads neither numpy nor torch."""
    if isinstance(value, array) or (getattr(value, "ndim", None) and hasattr(value, "tolist")):
        return value.tolist()
    return value


def _meant(name: str, known: Sequence[str]) -> str:
    meant = PEER_NAMES.get(name) or NEAR_NAMES.get(name, "")
    if meant.partition(",")[0] in known:
        return f": it is {meant} here"
    near = nearest_name(name, known)
    return f": did you mean {near!r}?" if near else ""


def _marks(annotation: Any) -> Iterator[Meta]:
    """The marks of a field's type, also of the types that it is a union of."""
    if get_origin(annotation) is Annotated:
        yield from (mark for mark in annotation.__metadata__ if isinstance(mark, Meta))
        yield from _marks(annotation.__origin__)
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _marks(each)


def _range(least: float | None, above: float | None, most: float | None) -> str:
    low, high, over = (f"{bound:g}" if isinstance(bound, float) else str(bound) for bound in (least, most, above))
    if least is not None and most is not None:
        return f"from {low} to {high}"
    start = f"at least {low}" if least is not None else f"above {over}" if above is not None else ""
    end = "" if most is None else f"at most {high}"
    return " and ".join(filter(None, (start, end)))
