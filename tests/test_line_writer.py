import logging
import os

from pyllm.line_writer import MAX_WAITING, LineWriter


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
    expected = num_kept * line + b"pyllm: stderr is read too slowly, 300000 bytes were dropped here\n"
    received = b""
    while len(received) < len(expected):
        received += os.read(theirs, 1 << 16)
    assert received == expected
    writer.finish()
    writer.forward(b"again\n")
    assert os.read(theirs, 100) == b"again\n"
    for descriptor in (ours, theirs):
        os.close(descriptor)
