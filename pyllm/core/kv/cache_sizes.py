"""The numbers of KV blocks and states that every rank has, on the device and on the host. They never change."""

from typing import NamedTuple

from pyllm._rust import Scheduler


class CacheSizes(NamedTuple):
    """The arguments of the ranks' method `allocate`."""

    num_blocks: int
    num_host_blocks: int
    num_states: int = 0
    num_host_states: int = 0

    @classmethod
    def of(cls, scheduler: Scheduler) -> "CacheSizes":
        """The numbers that a scheduler plans with."""
        stats = scheduler.stats()
        return cls(*(stats[name] for name in cls._fields))
