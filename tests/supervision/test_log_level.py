"""The level of a process's log, and that its children follow."""

import logging
from collections.abc import Iterator

import pytest

from pyllm import log
from pyllm.supervision import log_level
from pyllm.supervision.log_level import changed_log_level, current_log_level, set_log_level


@pytest.fixture(autouse=True)
def level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is one for this process: whatever a test sets is undone."""
    root = logging.getLogger()
    before, handlers = root.level, root.handlers[:]
    monkeypatch.setattr(log_level, "_changed", "")
    yield
    root.setLevel(before)
    root.handlers[:] = handlers


def test_a_level_that_was_set_is_that_of_the_process_and_what_its_children_are_told() -> None:
    assert changed_log_level() == ""
    for level in log_level.LOG_LEVELS:
        set_log_level(level)
        assert (current_log_level(), changed_log_level()) == (level, level)


def test_it_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLM_LOG_LEVEL", "ERROR")
    log.configure("pyllm::test")
    assert current_log_level() == "ERROR"
    set_log_level("DEBUG")
    log.configure("pyllm::test")
    assert current_log_level() == "DEBUG"
