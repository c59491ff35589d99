"""What poisoned requests have cost: the processes that they ended, and the cores among them that worked for others.

Knows what the poison put on record, and how a client saw its cores just before each death.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyllm import EngineClient
from tests.cluster.poison import Death


class BusyCores(NamedTuple):
    """The epochs of the cores, by address, that had requests above suspicion at a time of the monotonic clock."""

    time: float
    busy: Mapping[str, int]


class CoreObserver:
    """How a client sees its cores; call `observe` often while a poisoned request lives."""

    def __init__(self, client: EngineClient) -> None:
        self.seen: list[BusyCores] = []
        self._client = client

    def observe(self, now: float) -> None:
        """Note it."""
        cores = self._client._cores.all()  # What is suspect is the client's secret.
        busy = {core.address: core.epoch for core in cores if core.has_unsuspected_requests}
        self.seen.append(BusyCores(now, busy))


def poison_damage(deaths: Iterable[Death], seen: Sequence[BusyCores], addresses: Mapping[int, str]) -> dict[str, Any]:
    """The most processes that one poisoned request has ended; of cores also the most that were healthy.

    A healthy core worked for others, and did so when the request ended its first one: not one that has followed a lost
    core, with what was lost there. `addresses` are those of the machines, by the process ids of their supervisors.
    """
    by_request: dict[str, list[Death]] = {}
    for death in deaths:
        by_request.setdefault(death.request, []).append(death)
    most: Counter[str] = Counter()
    num_healthy = 0
    for own in by_request.values():
        victim = own[0].victim
        most[victim] = max(most[victim], len(own))
        if victim == "core":
            first = _busy(seen, own[0].time)
            struck = {(addresses.get(death.supervisor), _epoch(seen, death, addresses)) for death in own}
            num_healthy = max(num_healthy, len(struck & set(first.items())))
    return {"most_workers": most["worker"], "most_cores": most["core"], "most_healthy_cores": num_healthy}


def _epoch(seen: Sequence[BusyCores], death: Death, addresses: Mapping[int, str]) -> int | None:
    """That of the core that died, if it worked for others as it was seen last."""
    address = addresses.get(death.supervisor)
    return None if address is None else _busy(seen, death.time).get(address)


def _busy(seen: Sequence[BusyCores], time: float) -> Mapping[str, int]:
    index = bisect([cores.time for cores in seen], time) - 1
    return seen[index].busy if index >= 0 else {}
