"""Several cores in one process on one event-ordered clock: real schedulers, with step times from a cost model.

Requests are placed as by a client: by load reports that are a step and a delay old. Knows no scenario.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from benchmarks.engine.scheduler import answer, make
from benchmarks.engine.simulated_executor import StepCost
from pyllm._rust import Placement, Plan, Scheduler

BLOCK_SIZE = 16
REPORT_DELAY = 0.02  # seconds
# About the costs of an 8B model on one large GPU.
COST = StepCost(base=0.008, prefill_token=40e-6, decode_row=20e-6, context=0.5e-6)


@dataclass
class SimulatedRequest:
    """One request of a stream."""

    prompt: bytes  # int32
    max_tokens: int
    tenant: str = ""
    session: str = ""


class Chooser(Protocol):
    """Chooses a core for each request."""

    def place(self, request_id: int, request: SimulatedRequest) -> int: ...
    def ended(self, request_id: int) -> None: ...
    def update_core(self, core: int, last_request: int, changes: bytes, load: bytes) -> None: ...


class RoundRobin:
    """Chooses cores in turn."""

    def __init__(self, num_cores: int) -> None:
        self._cores = itertools.cycle(range(num_cores))

    def place(self, request_id: int, request: SimulatedRequest) -> int:
        del request_id, request
        return next(self._cores)

    def ended(self, request_id: int) -> None:
        """Do nothing."""

    def update_core(self, core: int, last_request: int, changes: bytes, load: bytes) -> None:
        """Do nothing."""


class ByPrefix:
    """`Placement`, for cores numbered from 0. With `ignores_tenants` all work counts as one tenant's."""

    def __init__(self, num_cores: int, prefix_hash: str = "blake3", *, ignores_tenants: bool = False) -> None:
        self.cores = list(range(num_cores))
        self._placement = Placement(block_size=BLOCK_SIZE, prefix_hash=prefix_hash)
        for core in self.cores:
            self._placement.add_core(core)
        self.ended = self._placement.ended
        self._ignores_tenants = ignores_tenants

    def add_core(self) -> None:
        """Add a core."""
        self.cores.append(len(self.cores))
        self._placement.add_core(self.cores[-1])

    def update_core(self, core: int, last_request: int, changes: bytes, load: bytes) -> None:
        """Apply a core's load report."""
        if self._ignores_tenants:
            # The first byte tells whether the core shares by tenant. Blocks keep their tenants, so that they are found.
            load = bytes(1) + load[1:]
        self._placement.update_core(core, last_request, changes, load)

    def place(self, request_id: int, request: SimulatedRequest) -> int:
        core, _ = self._placement.place(
            request_id,
            request.prompt,
            request.max_tokens,
            self.cores,
            tenant=request.tenant,
            session=request.session,
        )
        return core


@dataclass
class Core:
    """A scheduler and its worker, which computes a step at a time."""

    scheduler: Scheduler
    slowness: float = 1.0
    number: int = -1  # of its changes
    last_request: int = -1
    is_computing: bool = False
    tokens: Counter[float] = field(default_factory=Counter)  # output tokens by time

    def num_tokens(self, since: float) -> int:
        """Output tokens after `since`."""
        return sum(count for time, count in self.tokens.items() if time > since)


class Simulation:
    """Cores, a clock, and the streams whose requests follow one another."""

    def __init__(self, num_cores: int, chooser: Chooser, *, slots: int, num_blocks: int, **settings: Any) -> None:
        self.now = 0.0
        self._make = partial(make, slots, num_blocks, **settings)
        self.cores = [Core(self._make()) for _ in range(num_cores)]
        self.tokens_by_tenant: Counter[str] = Counter()
        self.durations: list[tuple[float, float]] = []  # when each request ended, and how long it took
        self._chooser = chooser
        self._requests: dict[int, tuple[SimulatedRequest, float, Callable[[], None]]] = {}
        self._next = itertools.count()
        self._serial = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedule `call` for `seconds` from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._serial), call))

    def submit(self, request: SimulatedRequest, ended: Callable[[], None]) -> None:
        """Place a request; `ended` is called when its client has received its end."""
        request_id = next(self._next)
        number = self._chooser.place(request_id, request)
        core = self.cores[number]
        core.scheduler.add(
            0,
            request_id,
            request.prompt,
            seed=request_id,
            max_tokens=request.max_tokens,
            arrival=self.now,
            tenant=request.tenant,
        )
        core.last_request = request_id
        self._requests[request_id] = request, self.now, ended
        self._begin(number)

    def add_core(self) -> None:
        """Add a core that the chooser already has."""
        self.cores.append(Core(self._make()))

    def run(self, until: float) -> None:
        """Run the simulation until this time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = until

    def throughput(self, since: float) -> float:
        """Output tokens a second, of all cores, from `since` until now."""
        return sum(core.num_tokens(since) for core in self.cores) / (self.now - since)

    def prefix_counts(self) -> tuple[int, int]:
        """Prompt tokens found in the caches so far, and all prompt tokens looked up."""
        stats = [core.scheduler.stats() for core in self.cores]
        return sum(one["prefix_hits"] for one in stats), sum(one["prefix_queries"] for one in stats)

    def _begin(self, number: int) -> None:
        core = self.cores[number]
        if core.is_computing:
            return
        plan = core.scheduler.schedule(self.now)
        if plan is not None:
            core.is_computing = True
            seconds = core.slowness * COST.seconds(plan)
            self.at(seconds, lambda: self._end(number, plan, seconds))

    def _end(self, number: int, plan: Plan, seconds: float) -> None:
        core = self.cores[number]
        core.is_computing = False
        core.scheduler.commit(plan.step, *answer(plan), seconds)
        ended = self._take(core)
        core.number, changes, load = core.scheduler.load_report(core.number)
        last_request = core.last_request
        self.at(REPORT_DELAY, lambda: self._chooser.update_core(number, last_request, changes, load))
        self._begin(number)
        for request_id in ended:
            self._chooser.ended(request_id)
            _, began, call = self._requests.pop(request_id)
            self.durations.append((self.now, self.now - began))
            call()

    def _take(self, core: Core) -> list[int]:
        """Count new tokens; return the requests that have ended."""
        columns = core.scheduler.take_deltas(0)
        if columns is None:
            return []
        requests, starts = np.frombuffer(columns[0], "<u8"), np.frombuffer(columns[3], "<i4")
        core.tokens[self.now] += int(starts[-1])
        by_tenant: dict[str, int] = defaultdict(int)
        for request_id, count in zip(requests.tolist(), np.diff(starts).tolist(), strict=True):
            by_tenant[self._requests[request_id][0].tenant] += count
        self.tokens_by_tenant.update(by_tenant)
        return [int(one) for one in requests[np.frombuffer(columns[5], "u1") != 0]]
