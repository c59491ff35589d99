"""Host memory that is running out: the kernel's word for it, and caches that are made smaller while it lasts.

Does not know what the caches hold.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pyllm.unused_memory import return_freed_memory

# Memory is short below so much of it, whichever is less, and there is enough again from twice as much on.
LOW_SHARE = 0.05
LOW_BYTES = 1 << 30
INTERVAL = 10.0  # seconds between two halvings of the caches
LEAST_SHARE = 1 / 64  # of its size that a cache is left with

_ROOT = Path("/")

logger = logging.getLogger(__name__)


class Memory(msgspec.Struct, frozen=True):
    """Bytes that can still be had without swapping, of those that `owner` may have in all."""

    available: int
    total: int
    owner: str

    @property
    def is_short(self) -> bool:
        """Whether something should be given back."""
        return self.available < self._low

    @property
    def is_enough(self) -> bool:
        """Whether nothing need be given back any more."""
        return self.available >= 2 * self._low

    @property
    def _low(self) -> float:
        return min(LOW_SHARE * self.total, LOW_BYTES)


class MemoryPressure:
    """Halves caches while memory is short, every 10 s, and lets them grow again once there is enough.

    Each of `resize` takes the share of its configured size that a cache may have. `read` gives all limits that hold.
    """

    def __init__(
        self,
        resize: Sequence[Callable[[float], None]],
        read: Callable[[], list[Memory]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resize = resize
        self._read = read or host_memory
        self._clock = clock
        self._share = 1.0
        self._next_halving = 0.0

    def look(self) -> bool:
        """Whether the caches were halved just now. To be called once or twice a second."""
        memories = self._read()
        short = next((memory for memory in memories if memory.is_short), None)
        if short is not None:
            now = self._clock()
            if self._share <= LEAST_SHARE or now < self._next_halving:
                return False
            self._next_halving = now + INTERVAL
            self._set(self._share / 2)
            return_freed_memory()
            text = "%d MB of %s's %d MB of memory are available: caches are down to %.3g of their size"
            logger.warning(text, short.available // 1_000_000, short.owner, short.total // 1_000_000, self._share)
            return True
        if self._share < 1 and all(memory.is_enough for memory in memories):
            self._set(1.0)
            logger.info("there is enough memory again: caches may have their size")
        return False

    def _set(self, share: float) -> None:
        self._share = share
        for resize in self._resize:
            resize(share)


def host_memory(root: Path = _ROOT) -> list[Memory]:
    """The machine's memory, and that of each control group (version 2) around this process that has a limit.

    What cannot be read is left out, all of it where there is no Linux.
    """
    memories = []
    figures = _figures(root / "proc/meminfo")
    if "MemAvailable:" in figures and "MemTotal:" in figures:
        memories.append(Memory(figures["MemAvailable:"] << 10, figures["MemTotal:"] << 10, "the host"))
    for group in _groups(root):
        limit = _text(group / "memory.max")
        used = _text(group / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            # Pages of files are let go of for whoever needs room, as in MemAvailable: a model's file fills any limit.
            statistics = _figures(group / "memory.stat")
            kept = int(used) - sum(statistics.get(name, 0) for name in ("active_file", "inactive_file"))
            memories.append(Memory(max(0, int(limit) - kept), int(limit), "the container"))
    return memories


def _groups(root: Path) -> list[Path]:
    """The folders of this process's control group and of all around it."""
    mount = root / "sys/fs/cgroup"
    own = next((line[4:] for line in _text(root / "proc/self/cgroup").splitlines() if line.startswith("0::/")), None)
    if own is None:
        return []
    group = mount / own
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]


def _figures(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
