"""Arguments become the types that they should have, or are refused with their name and value."""

import math
from array import array
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.parameters import arguments

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([np.int64(3), np.float32(0.5), np.bool_(False), np.array([1]), torch.tensor([1]), object(), {1}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
READERS: dict[Callable[[str, Any], Any], Callable[[Any], bool]] = {
    arguments.integer: lambda read: type(read) is int,
    arguments.number: lambda read: type(read) is float and not math.isnan(read),
    arguments.flag: lambda read: type(read) is bool,
    arguments.text: lambda read: bool(isinstance(read, str) and read.encode() is not None),
    arguments.texts: lambda read: all(isinstance(each, str) for each in read),
    arguments.token_ids: lambda read: all(type(each) is int for each in read),
    arguments.mapping: lambda read: isinstance(read, dict),
}


@pytest.mark.parametrize("reader", READERS)
@given(value=ANYTHING)
def test_what_is_read_has_its_type_or_is_refused_by_name(reader: Callable[[str, Any], Any], value: Any) -> None:
    try:
        assert READERS[reader](reader("wanted[0].part", value))
    except RequestError as error:
        assert str(error).startswith("wanted[0].part must be ")  # noqa: PT017 - either may come
        assert error.parameter == "wanted"  # noqa: PT017 - the same


@given(st.integers(-(2**31), 2**31 - 1))
def test_whole_numbers_stay_what_they_are(value: int) -> None:
    assert arguments.integer("a", value) == arguments.integer("a", np.int64(value)) == value
    assert arguments.number("a", np.float64(value)) == arguments.number("a", value) == value
    for ids in ([value], (value,), array("q", [value]), np.array([value]), torch.tensor([value]), [np.int32(value)]):
        assert list(arguments.token_ids("a", ids)) == [value]


class Numbers(msgspec.Struct, frozen=True):
    """A field of each type that is read, and others."""

    whole: int = 0
    most: int | None = None
    share: Annotated[float, arguments.declared("A share.", ge=0.0)] = 0.0
    limit: float | None = None
    is_on: bool = False
    name: str = ""
    fixed: int = 0


NUMBERS = arguments.NumberReader(Numbers, ["fixed"])
NONE = type(None)
FIELD_TYPES: list[set[type]] = [{int}, {int, NONE}, {float}, {float, NONE}, {bool}]


@given(given=st.fixed_dictionaries({}, optional=dict.fromkeys(Numbers.__struct_fields__, ANYTHING)))
def test_numbers_are_read_by_the_types_of_their_fields(given: dict[str, Any]) -> None:
    params = Numbers(**given)
    try:
        NUMBERS.read(params)
    except RequestError as error:
        assert error.parameter in given  # noqa: PT017 - some values are no numbers
        return
    types = [type(value) for value in msgspec.structs.astuple(params)[:5]]
    assert all(kind in kinds for kind, kinds in zip(types, FIELD_TYPES, strict=True))
    assert (params.name, params.fixed) == (given.get("name", ""), given.get("fixed", 0))


def test_errors_are_short() -> None:
    for value in ("x" * 10_000, list(range(10_000)), 10**6000, [10**6000], {"a": "b" * 10_000}):
        assert len(arguments.shown(value)) < 200
