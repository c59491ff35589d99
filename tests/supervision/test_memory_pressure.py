"""Caches shrink while memory is short, with a line of the log for each time, and grow when there is enough again."""

import logging

import psutil
import pytest

from pyllm.frontend.text.encoding_threads import EncodingCache, EncodingCounts
from pyllm.machine.memory import Memory
from pyllm.supervision.memory_pressure import INTERVAL, LEAST_SHARE, MemoryPressure

GIB = 1 << 30
SHORT = [Memory(GIB // 10, 8 * GIB, "the container"), Memory(90 * GIB, 100 * GIB, "the host")]
BETWEEN = [Memory(6 * GIB // 10, 8 * GIB, "the container"), Memory(90 * GIB, 100 * GIB, "the host")]
ENOUGH = [Memory(GIB, 8 * GIB, "the container"), Memory(90 * GIB, 100 * GIB, "the host")]


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.memories = ENOUGH
        self.shares: list[float] = []
        self.pressure = MemoryPressure([self.shares.append], lambda: self.memories, lambda: self.now)

    def look(self, memories: list[Memory], times: int = 1) -> int:
        """How often something was given up in so many ticks."""
        self.memories = memories
        return sum(self.pressure.look() for _ in range(times))


def test_caches_are_halved_every_ten_seconds_while_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    assert world.look(ENOUGH, 20) == 0
    assert world.look(SHORT, 20) == 1
    world.now += INTERVAL
    assert world.look(SHORT, 20) == 1
    assert world.shares == [0.5, 0.25]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0] == (
        "107 MB of the container's 8589 MB of memory are available: caches are down to 0.5 of their size"
    )


def test_they_have_their_size_again_once_there_is_enough_and_not_before(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.look(SHORT)
    world.now += INTERVAL
    assert world.look(BETWEEN, 20) == 0
    assert world.shares == [0.5]
    caplog.set_level(logging.INFO)
    caplog.clear()
    assert world.look(ENOUGH, 20) == 0
    assert world.shares == [0.5, 1.0]
    assert len(caplog.records) == 1


def test_something_is_always_left() -> None:
    world = World()
    for _ in range(20):
        world.look(SHORT)
        world.now += INTERVAL
    assert world.shares[-1] == LEAST_SHARE
    assert len(world.shares) == 6


def test_where_no_limit_is_known_nothing_is_short() -> None:
    assert not MemoryPressure([], list).look()


def test_what_is_given_up_goes_back_to_the_machine() -> None:
    cache = EncodingCache(EncodingCounts())
    number = 0
    while cache.num_bytes < 60 << 20:
        text = f"{number} ".ljust(1000 + number % 3000)
        cache.put(text, bytes(len(text)))
        number += 1
    process = psutil.Process()
    before = process.memory_info().rss
    world = World()
    pressure = MemoryPressure([cache.resize], lambda: SHORT, lambda: world.now)
    while pressure.look():
        world.now += INTERVAL
    assert cache.num_bytes <= 1 << 20
    assert before - process.memory_info().rss > 30 << 20
