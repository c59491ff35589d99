import os

from pyllm.supervision.child_log import LOG_BYTES, ChildLog


def test_lines_are_passed_on_whole_and_their_end_is_kept() -> None:
    ours, theirs = os.pipe()
    lines: list[bytes] = []
    log = ChildLog(ours, lines.append)
    os.write(theirs, b"one\ntw")
    assert log.read()
    assert lines == [b"one\n"]
    assert log.read()  # nothing there
    os.write(theirs, b"o\nthree\nfour")
    assert log.read()
    assert lines == [b"one\n", b"two\nthree\n"]
    os.close(theirs)
    log.close()
    assert lines == [b"one\n", b"two\nthree\n", b"four\n"]
    assert log.tail == b"one\ntwo\nthree\nfour"


def test_nothing_is_lost_at_the_end_though_a_descendant_holds_the_pipe() -> None:
    ours, theirs = os.pipe()
    lines: list[bytes] = []
    log = ChildLog(ours, lines.append)
    os.write(theirs, b"x\n" * 32_000)
    log.close()
    assert b"".join(lines) == b"x\n" * 32_000
    os.close(theirs)


def test_a_line_without_an_end_is_bounded() -> None:
    ours, theirs = os.pipe()
    lines: list[bytes] = []
    log = ChildLog(ours, lines.append)
    for _ in range(4):
        os.write(theirs, b"x" * 50_000)
        assert log.read()
    assert [len(line) for line in lines] == [100_001, 100_001]
    assert log.tail == b"x" * LOG_BYTES
    os.close(theirs)
    log.close()
    assert len(lines) == 2
