"""However often something happens, the log has two lines of it."""

import pytest

from pyllm.episode import QUIET, Episode


def test_it_is_told_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    episode = Episode("requests are refused", lambda: now)
    for count in (0, 0, 3, 4, 4, 90):
        episode.look(count)
        now += QUIET - 1
    assert caplog.messages == ["requests are refused"]
    now += QUIET
    for _ in range(9):
        episode.look(90)
    assert caplog.messages[1:] == ["requests are refused: 90 times, and not for 10 s now"]
    episode.look(92)
    now += QUIET
    episode.look(92)
    assert caplog.messages[2:] == ["requests are refused", "requests are refused: 2 times, and not for 10 s now"]


def test_a_count_that_begins_anew_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    episode = Episode("x", lambda: 0.0)
    episode.look(5)
    episode.look(0)
    assert len(caplog.messages) == 1
