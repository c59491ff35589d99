"""The choice of models that make room for another one. Pure: no clock, no process."""

from collections.abc import Iterable
from typing import NamedTuple


class Resident(NamedTuple):
    """A loaded model that may be unloaded. A busy one ends its requests first, and may go only if it `may_drain`."""

    name: str
    num_bytes: int
    last_used: float
    is_idle: bool
    may_drain: bool


def choose_leavers(residents: Iterable[Resident], num_bytes: int, num_models: int) -> list[str]:
    """The models to unload so that this many bytes and places become free: idle ones first, least recently used first.

    Empty where all of them together are not enough: then nobody leaves in vain.
    """
    leavers: list[str] = []
    may_go = [each for each in residents if each.is_idle or each.may_drain]
    for each in sorted(may_go, key=lambda one: (not one.is_idle, one.last_used)):
        if num_bytes <= 0 and num_models <= 0:
            break
        leavers.append(each.name)
        num_bytes -= each.num_bytes
        num_models -= 1
    return leavers if num_bytes <= 0 and num_models <= 0 else []
