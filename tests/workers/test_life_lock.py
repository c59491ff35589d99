"""A lock that a process holds for life."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from pyllm.workers import life_lock

HOLD = """
import sys
from pyllm.workers import life_lock
assert life_lock.hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_process_waits_for_the_end_of_the_one_before(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as first:
        second = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert not life_lock.hold(str(tmp_path / "lock"), 0.0), "the first holds it"
        first.kill()
        first.wait()
        with second:
            assert second.stdout is not None
            assert second.stdout.readline() == b"held\n"
            assert not life_lock.hold(str(tmp_path / "lock"), 0.0), "the second holds it"
            second.kill()


def test_a_holder_that_does_not_end_is_waited_for_no_longer_than_may_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with holder(tmp_path / "lock") as first, caplog.at_level(logging.WARNING):
        assert not life_lock.hold(str(tmp_path / "lock"), 0.02)
        first.kill()
    assert "still holds" in caplog.text
