"""Caches shrink while memory is short, with a line of the log for each time, and grow when there is enough again."""

import logging
from pathlib import Path

import psutil
import pytest

from pyllm.frontend.encoding_cache import EncodingCache, EncodingCounts
from pyllm.frontend.memory_pressure import (
    INTERVAL,
    LEAST_SHARE,
    LOW_BYTES,
    Memory,
    MemoryPressure,
    host_memory,
)

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


def test_a_twentieth_of_a_large_machine_is_not_short() -> None:
    assert not Memory(LOW_BYTES + 1, 1000 * GIB, "").is_short
    assert Memory(LOW_BYTES - 1, 1000 * GIB, "").is_short
    assert Memory(GIB // 10, 4 * GIB, "").is_short
    assert not Memory(GIB // 10, GIB, "").is_short


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_kernels_word_is_read_for_the_host_and_every_group_around(tmp_path: Path) -> None:
    """Pages of files count as available, as they do in MemAvailable."""
    write(tmp_path / "proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\n")
    write(tmp_path / "proc/self/cgroup", "1:cpu:/ignored\n0::/pod/container\n")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "memory.stat", "anon 1\n")
    write(groups / "pod/memory.max", "900000\n")
    write(groups / "pod/memory.current", "500000\n")
    write(groups / "pod/memory.stat", "anon 400000\nactive_file 60000\ninactive_file 40000\n")
    write(groups / "pod/container/memory.max", "max\n")
    write(groups / "pod/container/memory.current", "500000\n")
    assert host_memory(tmp_path) == [
        Memory(400 << 10, 1000 << 10, "the host"),
        Memory(500_000, 900_000, "the container"),
    ]


def test_a_container_that_sees_itself_as_the_root_has_its_limit(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", "1000\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "2000\n")
    assert host_memory(tmp_path) == [Memory(0, 1000, "the container")]


def test_where_there_is_nothing_to_read_nothing_is_short(tmp_path: Path) -> None:
    assert host_memory(tmp_path) == []
    assert not MemoryPressure([], list).look()


def test_this_machine_tells_of_its_memory() -> None:
    host = host_memory()[0]
    assert host.total == psutil.virtual_memory().total
    assert 0 < host.available < host.total


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
