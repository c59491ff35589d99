import logging
import os
import re
import subprocess
import sys

from pyllm.supervision.line_writer import MAX_WAITING, LineWriter

NOTE = re.compile(rb"pyllm: stderr is read too slowly, (\d+) bytes were dropped here\n")


def num_dropped(received: bytes) -> int:
    """As it was noted."""
    return sum(map(int, NOTE.findall(received)))


def test_short_lines_are_written_at_once() -> None:
    theirs, ours = os.pipe()
    writer = LineWriter(ours)
    handler = logging.StreamHandler(writer)
    handler.handle(logging.makeLogRecord({"msg": "hällo"}))
    assert os.read(theirs, 100) == "hällo\n".encode()
    for descriptor in (ours, theirs):
        os.close(descriptor)


def test_who_reads_slowly_stops_nobody_and_misses_what_is_too_much() -> None:
    theirs, ours = os.pipe()
    writer = LineWriter(ours)
    line = b"x" * 99_999 + b"\n"
    num_kept = MAX_WAITING // len(line)
    for _ in range(num_kept + 3):
        writer.forward(line)
    writer.finish(0.0)  # waits for nobody
    received = b""
    while num_dropped(received) < 3 * len(line):
        received += os.read(theirs, 1 << 16)
    # One note, or two where the thread came to the first dropped line before the last.
    assert NOTE.sub(b"", received) == num_kept * line
    assert num_dropped(received) == 3 * len(line)
    writer.finish()
    writer.forward(b"again\n")
    assert os.read(theirs, 100) == b"again\n"
    for descriptor in (ours, theirs):
        os.close(descriptor)


def test_one_write_that_is_too_much_is_noted_at_once() -> None:
    theirs, ours = os.pipe()
    writer = LineWriter(ours)
    writer.forward(b"x" * (MAX_WAITING + 1))
    writer.finish()
    assert os.read(theirs, 100) == b"pyllm: stderr is read too slowly, 1048577 bytes were dropped here\n"
    for descriptor in (ours, theirs):
        os.close(descriptor)


def test_a_process_ends_when_all_is_written_and_before_python_is_finalized() -> None:
    code = (
        "import atexit, os, sys\n"
        "from pyllm.supervision import line_writer\n"
        "atexit.register(os.abort)\n"
        "print('x' * 100_000)\n"
        "line_writer.stderr().forward(b'y' * 300_000 + b'\\n')\n"
        "line_writer.end_process(7)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert process.returncode == 7
    assert process.stdout == b"x" * 100_000 + b"\n"
    assert process.stderr == b"y" * 300_000 + b"\n"
