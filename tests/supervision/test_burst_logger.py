"""However often an event happens, its burst takes two lines of the log."""

import pytest

from pyllm.supervision.burst_logger import QUIET, BurstLogger


def test_a_burst_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    burst = BurstLogger("requests are refused", lambda: now)
    for count in (0, 0, 3, 4, 4, 90):
        burst.look(count)
        now += QUIET - 1
    assert caplog.messages == ["requests are refused"]
    now += QUIET
    for _ in range(9):
        burst.look(90)
    assert caplog.messages[1:] == ["requests are refused: 90 times, and not for 10 s now"]
    burst.look(92)
    now += QUIET
    burst.look(92)
    assert caplog.messages[2:] == ["requests are refused", "requests are refused: 2 times, and not for 10 s now"]


def test_a_count_that_begins_anew_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    burst = BurstLogger("x", lambda: 0.0)
    burst.look(5)
    burst.look(0)
    assert len(caplog.messages) == 1
