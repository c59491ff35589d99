"""Cases that are left to `make full`: of two parameters each value stays, of a property the share of the profile."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings

from tests.tiers import ALL, cases, leave_products_to_full


class Case:
    """The parts of pytest's function that tiers read, with a `parametrize` for each name."""

    path, cls = Path("test_it.py"), None

    def __init__(self, test: str, **params: object) -> None:
        self.originalname, self.callspec = test, SimpleNamespace(params=params)
        self.marks: list[str] = []

    def iter_markers(self, _: str) -> Iterator[pytest.Mark]:
        return (pytest.mark.parametrize(name, []).mark for name in self.callspec.params)

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def kept(*items: Case) -> list[Case]:
    leave_products_to_full(cast(Any, items))
    return [item for item in items if not item.marks]


def test_each_row_of_each_parametrize_is_in_a_case_that_stays() -> None:
    items = [Case("test_a", size=size, dtype=dtype) for size in range(4) for dtype in "abc"]
    stay = kept(*items)
    assert len(stay) == 4
    assert {item.callspec.params["size"] for item in stay} == {0, 1, 2, 3}
    assert {item.callspec.params["dtype"] for item in stay} == {"a", "b", "c"}
    assert {name for item in items for name in item.marks} == {"full"}


def test_tests_are_looked_at_apart_and_those_with_one_parametrize_stay_whole() -> None:
    items = [Case(name, size=size) for name in ("test_a", "test_b") for size in range(3)]
    assert kept(*items) == items


@pytest.mark.parametrize(("share", "number"), [(ALL, 60), (ALL // 4, 15)])
def test_a_property_has_the_share_of_the_profile(share: int, number: int) -> None:
    before = settings.get_current_profile_name()
    settings.register_profile("of this test", max_examples=share)
    settings.load_profile("of this test")
    try:
        assert cases(60) == number
    finally:
        settings.load_profile(before)
