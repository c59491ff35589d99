"""Which tokens of a prompt stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.frontend.text.truncation import Side, Truncation

TEXT = [101, 1, 2, 3, 4, 102]


@pytest.mark.parametrize(
    ("limit", "side", "around", "kept"),
    [
        (6, "right", [101, 102], TEXT),
        (4, "right", [101, 102], [101, 1, 2, 102]),
        (4, "left", [101, 102], [101, 3, 4, 102]),
        (1, "right", [101, 102], [101]),
        (1, "left", [101, 102], [102]),
        (4, "right", [], [101, 1, 2, 3]),
        (4, "left", [], [2, 3, 4, 102]),
        (4, "right", [102], [101, 1, 2, 102]),  # the end alone is added
        (4, "left", [101], [101, 3, 4, 102]),
        (4, "right", [7, 8], [101, 1, 2, 3]),  # tokens that a client gave
    ],
)
def test_special_tokens_stay_at_both_ends(limit: int, side: Side, around: list[int], kept: list[int]) -> None:
    assert list(Truncation(limit, side).kept(TEXT, around)) == kept


@given(
    st.lists(st.integers(), max_size=9),
    st.lists(st.integers(), max_size=9),
    st.integers(0, 3),
    st.integers(2, 12),
    st.sampled_from(["left", "right"]),
)
def test_the_longer_of_two_texts_loses_tokens_first(
    first: list[int], second: list[int], around: int, room: int, side: Side
) -> None:
    kept = Truncation(room + around, side).kept_of_pair(first, second, around)
    for tokens, part in zip((first, second), kept, strict=True):
        assert list(part) == (tokens[: len(part)] if side == "right" else tokens[len(tokens) - len(part) :])
    lengths = sorted(map(len, kept))
    assert sum(lengths) == min(room, len(first) + len(second))
    if sum(lengths) < len(first) + len(second):  # The shorter one is whole, or both are as long as each other.
        assert lengths[0] == min(len(first), len(second)) or lengths[1] - lengths[0] <= 1


def test_each_of_two_texts_keeps_a_token() -> None:
    assert Truncation(5, "right").kept_of_pair([1, 2], [], 4) == ([1], [])
    with pytest.raises(RequestError, match=r"^truncate_prompt_tokens 5 leaves no room .* beside 4 other tokens$"):
        Truncation(5, "right").kept_of_pair([1, 2], [3], 4)
