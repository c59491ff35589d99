"""The batcher writes in order, a few parts at a time, and all before the event loop waits again."""

import asyncio
from typing import cast

from pyllm.frontend.http.write_batcher import PARTS_AT_ONCE, WriteBatcher


class Transport:
    """Enters what it is written in `taken`, which it shares with others."""

    def __init__(self, taken: list[bytes]) -> None:
        self.taken = taken
        self.closing = False

    def write(self, data: bytes) -> None:
        self.taken.append(data)

    def is_closing(self) -> bool:
        return self.closing


def transport(taken: list[bytes]) -> tuple[Transport, asyncio.WriteTransport]:
    made = Transport(taken)
    return made, cast("asyncio.WriteTransport", made)


async def test_everything_leaves_in_order_within_the_turn() -> None:
    taken: list[bytes] = []
    batcher = WriteBatcher()
    (_, first), (_, second) = transport(taken), transport(taken)
    for turn in (b"1", b"2"):
        batcher.add(first, b"a" + turn)
        batcher.add(second, b"b" + turn)
        batcher.add(first, b"c" + turn)
        assert len(taken) == (0 if turn == b"1" else 3)
        await asyncio.sleep(0)
    assert taken == [b"a1", b"b1", b"c1", b"a2", b"b2", b"c2"]


async def test_many_parts_do_not_wait_for_the_turn() -> None:
    taken: list[bytes] = []
    batcher = WriteBatcher()
    _, wire = transport(taken)
    for index in range(2 * PARTS_AT_ONCE + 1):
        batcher.add(wire, b"%d" % index)
    assert taken == [b"%d" % index for index in range(2 * PARTS_AT_ONCE)]
    await asyncio.sleep(0)
    assert len(taken) == 2 * PARTS_AT_ONCE + 1


async def test_flush_waits_for_nothing_and_nothing_leaves_twice() -> None:
    taken: list[bytes] = []
    batcher = WriteBatcher()
    _, wire = transport(taken)
    batcher.add(wire, b"a")
    batcher.flush()
    assert taken == [b"a"]
    await asyncio.sleep(0)
    assert taken == [b"a"]


async def test_a_transport_that_closes_meanwhile_is_written_nothing() -> None:
    taken: list[bytes] = []
    batcher = WriteBatcher()
    (closing, first), (_, second) = transport(taken), transport(taken)
    batcher.add(first, b"a")
    batcher.add(second, b"b")
    closing.closing = True
    await asyncio.sleep(0)
    assert taken == [b"b"]
