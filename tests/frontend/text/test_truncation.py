"""Which tokens of a prompt stay."""

import pytest

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
