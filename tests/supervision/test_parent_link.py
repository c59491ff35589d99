"""What a child has its parent keep, while the parent reads and while it does not."""

from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec

from pyllm.supervision.parent_link import ParentLink
from pyllm.wire.messages import Heartbeat, Restarts
from pyllm.wire.supervision_messages import MAX_ENDED, ChildMessage, Kept


def report(number: int) -> dict[str, object]:
    return {"name": f"{number:0100}"}


def received(parent: Connection) -> list[Kept]:
    """All that the parent has to read by now, but for heartbeats."""
    messages = []
    while parent.poll():
        messages.append(msgspec.msgpack.decode(parent.recv_bytes(), type=ChildMessage))
    return [message for message in messages if isinstance(message, Kept)]


def test_what_is_kept_is_sent_at_once() -> None:
    parent, child = Pipe()
    link = ParentLink(child, "ready", 1.0)
    link.keep(Kept(settings={"watermark": 0.5}))
    link.keep(Kept(ended=(report(1),)))
    assert received(parent) == [Kept(settings={"watermark": 0.5}), Kept(ended=(report(1),))]
    link.beat()
    assert received(parent) == []


def test_a_parent_that_reads_nothing_holds_up_nobody_and_gets_the_last_of_it_later() -> None:
    parent, child = Pipe()
    link = ParentLink(child, "ready", 1.0)
    link.keep(Kept(settings={"watermark": 0.1}))
    for number in range(3 * MAX_ENDED):
        link.keep(Kept(ended=(report(number),)))
    link.keep(Kept(workers=(Restarts(7, 1, 0.0, "because"),)))
    link.keep(Kept(settings={"watermark": 0.9}))
    first = received(parent)
    assert len(first) < 3 * MAX_ENDED  # Else its socket has held them all.
    rest: list[Kept] = []
    while len(rest) == 0 or rest[-1].ended[-1:] != (report(3 * MAX_ENDED - 1),):
        link.beat()
        rest += received(parent)
    assert [kept.settings for kept in first + rest if kept.settings is not None] == [
        {"watermark": 0.1},
        {"watermark": 0.9},
    ]
    assert [kept.workers for kept in first + rest if kept.workers is not None] == [(Restarts(7, 1, 0.0, "because"),)]
    late = [each for kept in rest for each in kept.ended]
    assert late == [report(number) for number in range(2 * MAX_ENDED, 3 * MAX_ENDED)]


def test_a_child_hears_of_restarts() -> None:
    parent, child = Pipe()
    link = ParentLink(child, "ready", 1.0)
    restarts = (Restarts(7, 2, 1.5, "core 0 exited with code 1"),)
    parent.send_bytes(msgspec.msgpack.encode(Heartbeat("parent", restarts=restarts)))
    link.listen()
    assert link.restarts == restarts


def test_a_child_keeps_the_news_that_its_parent_sends_once() -> None:
    parent, child = Pipe()
    link = ParentLink(child, "ready", 1.0)
    for news in (b"first", b"", b"second", b""):
        parent.send_bytes(msgspec.msgpack.encode(Heartbeat("parent", news=news)))
        link.listen()
    assert link.news == b"second"
