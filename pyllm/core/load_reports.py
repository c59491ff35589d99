"""Reports this core's load and prefix cache to clients of several cores, which choose among them.

Packs nothing itself and chooses nothing. Costs nothing while no client wants reports.
"""

from collections.abc import Callable
from typing import NamedTuple

from pyllm._rust import Scheduler
from pyllm.core.clients import Clients
from pyllm.core.faults.lost_requests import LostRequests
from pyllm.wire.messages import RESERVATION, LoadReport

INTERVAL = 0.02  # least seconds between load reports: a client's data is at most this and one step old
PARTS_AT_ONCE = 8  # of a snapshot of a large cache; each has at most 150 kB
PART_BYTES = 100_000  # of changes; a part of at least this size may be followed by another at once
FROM_THE_START = -1  # the number for `load_report` of a client without data


class RequestCounts(NamedTuple):
    """The number of live requests of all clients, and of those that `LostRequests` counts."""

    num_requests: int
    num_lost_before: int


class LoadReporter:
    """Sends changes to each client that wants load reports, at most every `INTERVAL`; less often to slow ones."""

    def __init__(
        self,
        scheduler: Scheduler,
        clients: Clients,
        lost_requests: LostRequests,
        *,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._clients = clients
        self._lost_requests = lost_requests
        self._epoch = epoch
        self._clock = clock
        self._sent_at = 0.0
        self._reserved_until = 0.0
        self._told: dict[int, bytes] = {}  # the load last sent, by client
        self._numbers: dict[int, int] = {}  # the number of the next change, by client
        self._last_requests: dict[int, int] = {}

    def add(self, client: int) -> None:
        """Send load reports to a client from now on."""
        self._numbers[client] = FROM_THE_START
        self._told.pop(client, None)

    @property
    def has_listeners(self) -> bool:
        """Whether any client wants load reports."""
        return bool(self._numbers)

    def note(self, client: int, request: int) -> None:
        """Note a client's latest request; ids rise."""
        if client in self._numbers:
            self._last_requests[client] = request

    def reserve(self) -> None:
        """Reserve this core for requests that were lost with another one, as `Reserve` says.

        It still takes all requests: only clients know whether another core can take them.
        """
        now = self._clock()
        begins = now >= self._reserved_until
        self._reserved_until = now + RESERVATION
        if begins:
            self.send(at_once=True)

    def send(self, *, at_once: bool = False) -> None:
        """Send changes if `INTERVAL` has passed; call it after each step, and `at_once` when there is no step."""
        if not self._numbers:
            return
        now = self._clock()
        if not at_once and now - self._sent_at < INTERVAL:
            return
        self._sent_at = now
        counts = RequestCounts(self._scheduler.stats()["num_requests"], self._lost_requests.count())
        packed: dict[int, tuple[int, bytes, bytes]] = {}
        for client in self._clients.gone_of(self._numbers):
            del self._numbers[client]
            self._told.pop(client, None)
            self._last_requests.pop(client, None)
        for client in self._numbers:
            for _ in range(PARTS_AT_ONCE):
                if not self._clients.takes_more(client) or not self._send_part(client, packed, counts):
                    break

    def _send_part(self, client: int, packed: dict[int, tuple[int, bytes, bytes]], counts: RequestCounts) -> bool:
        """Send a client the next report, if it has news; True if another may follow at once."""
        number = self._numbers[client]
        if number not in packed:
            packed[number] = self._scheduler.load_report(number)
        following, changes, load = packed[number]
        last_request = self._last_requests.get(client, 0)
        num_requests, num_lost_before = counts
        reserved_for = max(0.0, self._reserved_until - self._clock())
        end = self._reserved_until if reserved_for else 0.0
        told = b"%d %d %d %r %b" % (last_request, num_requests, num_lost_before, end, load)
        if following == number and told == self._told.get(client):
            return False
        self._numbers[client], self._told[client] = following, told
        report = LoadReport(self._epoch, last_request, num_requests, changes, load, num_lost_before, reserved_for)
        self._clients.post(client, report)
        return len(changes) >= PART_BYTES
