"""Which cases of a test `make test` leaves to `make full`."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import settings

ALL = 100  # Hypothesis' own number of cases: that of the profile which runs all of them.


def full(*values: object) -> Any:
    """A case that only `make full` runs: one like it is in `make test`."""
    return pytest.param(*values, marks=pytest.mark.full)


def cases(number: int) -> int:
    """So many of a property in `make properties`; of `make test` the share that its profile of Hypothesis has."""
    return number * settings().max_examples // ALL


def leave_products_to_full(items: Iterable[pytest.Function]) -> None:
    """Keep enough cases of each test that every row of each `parametrize` is in one of them, and mark the others."""
    tests: dict[tuple[object, ...], list[pytest.Function]] = {}
    for item in items:
        tests.setdefault((item.path, item.cls, item.originalname), []).append(item)
    for left in tests.values():
        values = {item: set(_rows(item)) for item in left}
        missing = set().union(*values.values())
        while missing:
            chosen = max(left, key=lambda item: len(values[item] & missing))
            missing -= values[chosen]
            left.remove(chosen)
        for item in left:
            item.add_marker("full")


def _rows(item: pytest.Function) -> Iterator[str]:
    """For each `parametrize` of a test, what it gives this case: tensors and the like are known by their text."""
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        yield repr([(name.strip(), item.callspec.params[name.strip()]) for name in names])
