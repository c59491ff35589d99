"""A text that is filled in ends where its block does, or when time is up."""

import pytest

from pyllm.frontend.llama_cpp.line_limits import LineLimits


@pytest.mark.parametrize(
    ("num_indent", "text", "cut"),
    [
        (2, "a\n  b\n c\n  d", "a\n  b\n "),
        (2, "a\n  b\n\tc", "a\n  b\n\t"),
        (1, "a\n\tb\n\nc", "a\n\tb\n"),
        (2, "a\n  \nb", "a\n  \n"),
        (2, "a\n ", "a\n "),
        (0, "a\n\nb", "a\n\nb"),
    ],
)
def test_a_text_is_cut_at_the_first_line_that_leaves_its_block(num_indent: int, text: str, cut: str) -> None:
    limits = LineLimits(num_indent, 0.0)
    assert limits.cut(text) == cut
    ends = [limits.may_end(0, new) for new in text]
    assert any(ends) == (cut != text)
    assert ends.index(True) == len(cut) if cut != text else True


def test_time_ends_a_text_that_has_a_line() -> None:
    times = iter([5.0, 6.0, 7.5, 7.6, 8.0])
    limits = LineLimits(0, 2.0, lambda: next(times))
    assert [limits.may_end(0, new) for new in ("", "a", "b", "\n")] == [False, False, False, True]
    assert not limits.may_end(1, "\n")
