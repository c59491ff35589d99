"""A text that is filled in ends where its block does, or when time is up."""

import pytest

from pyllm.frontend.llama_cpp.line_limits import LineLimits


@pytest.mark.parametrize(
    ("num_indent", "text", "kept"),
    [
        (2, "a\n  b\n c\n  d", "a\n  b\n "),
        (2, "a\n  b\n\tc", "a\n  b\n\t"),
        (1, "a\n\tb\n\nc", "a\n\tb\n"),
        (2, "a\n  \nb", "a\n  \n"),
        (2, "a\n ", "a\n "),
        (2, "a\n   b", "a\n   b"),
        (0, "a\n\nb", "a\n\nb"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 20])
def test_a_text_is_cut_at_the_first_line_that_leaves_its_block(
    num_indent: int, text: str, kept: str, size: int
) -> None:
    limits = LineLimits(num_indent, 0.0)
    parts = [limits.take(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join(part for part, _ in parts) == kept
    assert [has_ended for _, has_ended in parts] == [
        kept != text and start + size > len(kept) for start in range(0, len(text), size)
    ]


def test_time_ends_a_text_that_has_a_line() -> None:
    times = iter([5.0, 6.0, 7.5, 7.6, 8.0])
    limits = LineLimits(0, 2.0, lambda: next(times))
    taken = [limits.take(new) for new in ("", "a", "b", "\n", "c")]
    assert taken == [("", False), ("a", False), ("b", False), ("\n", True), ("c", True)]
