"""Durations of `keep_alive`, in seconds or in Go's words."""

import math
from typing import Any

import pytest

from pyllm.errors import RequestError
from pyllm.frontend.ollama.options import keep_seconds


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (300, 300.0),
        (1.5, 1.5),
        (-1, math.inf),
        ("-1", math.inf),
        ("-1m", math.inf),
        ("0", 0.0),
        ("0s", 0.0),
        ("300", 300.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("24h0m0.5s", 86400.5),
    ],
)
def test_a_time_in_any_form_is_seconds(given: Any, seconds: float | None) -> None:
    assert keep_seconds(given) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("given", ["soon", "", "5 m", "m5", "5m later", [], {}])
def test_what_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match=r"keep_alive is .*: give seconds, or a duration such as 5m"):
        keep_seconds(given)
