"""What goes wrong in the cluster, one thing after another, drawn from a seed; and which pause came of which fault.

Knows machines and the load; no token.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pyllm import EngineClient
from pyllm.errors import EngineDeadError
from tests.cluster import poison
from tests.cluster.damage import CoreObserver
from tests.cluster.load import Load, Pause
from tests.cluster.machine import DEADLINE, Machine
from tests.cluster.pool import make_poisoned

CUT_SECONDS = 5.0
SLOW_DELAY = 0.2  # each way
SLOW_SECONDS = 8.0
OFF_SECONDS = 3.0  # from the end of a machine to its next start
POWER_SECONDS = 8.0  # the same, where nobody learns of the end: longer than a silence is borne
MEAN_REST = 2.0  # seconds between two faults, beyond the recovery from the first
ANYWHERE = 0.2  # of the faults come to any machine, the others to one that computes something
AMID_RECOVERY = 0.2  # of the faults are followed by another one whether or not all cores and streams go on
RECOVERY_LIMIT = 30.0  # seconds that the others wait for that
IN_FLIGHT = 0.3  # seconds in which tokens still come that were sent before a fault
POISON_LIMIT = 60.0  # seconds until the next fault comes even if the poisoned request has not ended
LOOK_INTERVAL = 0.1
OBSERVE_INTERVAL = 0.002
LEAVE_SECONDS = 3.0  # that the requests of a core have to end before it leaves
# A pause is that of the last fault that began before it, or so many seconds after its first moment, ...
ONSET = 0.5
AFTERMATH = 15.0  # ... and was over for less than that.


class Fault(NamedTuple):
    """One that was done, by the monotonic clock."""

    kind: str
    machine: str
    begin: float
    end: float


class Faults:
    """`record` is the file where poisoned requests say what they have ended, and `observer` sees the cores then."""

    def __init__(self, machines: Sequence[Machine], client: EngineClient, load: Load, record: Path, seed: int) -> None:
        self.done: list[Fault] = []
        self.num_poisoned = 0
        self._machines = machines
        self._load = load
        self._record = record
        self._client = client
        self.observer = CoreObserver(client)
        self._choose = random.Random(seed)
        self._starts: set[asyncio.Task[None]] = set()
        self.kinds: dict[str, Callable[[Machine], Awaitable[bool]]] = {
            "core": self._kill_core,
            "worker": self._kill_worker,
            "poison of a worker": lambda _: self._poison("worker"),
            "poison of a core": lambda _: self._poison("core"),
            "machine": self._kill_machine,
        }
        if client.cores and len(client.cores) > 1:
            self.kinds["leave"] = self._leave
        if all(machine.host is not None for machine in machines):
            self.kinds |= {"power": self._cut_power, "link": self._cut, "slow machine": self._slow_down}

    async def run(self, seconds: float, kinds: Sequence[str]) -> None:
        """Do faults of these kinds for so long, all of them before one comes again; what was begun is finished."""
        end = time.monotonic() + seconds
        bag: list[str] = []
        while time.monotonic() < end:
            bag = bag or self._choose.sample(kinds, len(kinds))
            await self.do(bag.pop(), self._choose.choice(self._machines_at_work() or self._machines))
            if self._choose.random() > AMID_RECOVERY:
                await self.wait_for_recovery()
            await asyncio.sleep(self._choose.expovariate(1 / MEAN_REST))
        await asyncio.gather(*self._starts)

    async def do(self, kind: str, machine: Machine) -> None:
        """One fault, to its end; of a machine's start that is its beginning."""
        begin = time.monotonic()
        if await self.kinds[kind](machine):
            self.done.append(Fault(kind, machine.name, begin, time.monotonic()))

    def _machines_at_work(self) -> list[Machine]:
        """Those that compute something, for most faults: one that starts, or is empty, has little to lose."""
        if self._choose.random() < ANYWHERE:
            return []
        at_work = {core.address for core in self._client.cores if core.num_requests}
        return [machine for machine in self._machines if machine.address in at_work]

    async def wait_for_recovery(self) -> None:
        """Wait until every core is ready and every stream that had begun goes on, or for `RECOVERY_LIMIT`."""
        since = time.monotonic() + IN_FLIGHT
        while time.monotonic() < since + RECOVERY_LIMIT:
            if self._load.has_recovered(since) and all(core.condition.ready for core in self._client.cores):
                break
            await asyncio.sleep(LOOK_INTERVAL)

    async def _kill_core(self, machine: Machine) -> bool:
        return await asyncio.to_thread(machine.kill_core)

    async def _kill_worker(self, machine: Machine) -> bool:
        return await asyncio.to_thread(machine.kill_worker)

    async def _kill_machine(self, machine: Machine) -> bool:
        if not machine.is_started:
            return False  # It is off from the last time.
        await asyncio.to_thread(machine.kill)
        self._start_after(OFF_SECONDS, machine)
        return True

    async def _cut_power(self, machine: Machine) -> bool:
        """As `_kill_machine`, but its sockets say nothing of it until it is there again."""
        if not machine.is_started:
            return False
        assert machine.host is not None
        await asyncio.to_thread(machine.host.cut)
        await asyncio.to_thread(machine.kill)
        self._start_after(POWER_SECONDS, machine)
        return True

    def _start_after(self, seconds: float, machine: Machine) -> None:
        async def start() -> None:
            await asyncio.sleep(seconds)
            if machine.host is not None:
                await asyncio.to_thread(machine.host.mend)
            await asyncio.to_thread(machine.start)

        starting = asyncio.create_task(start())
        self._starts.add(starting)
        starting.add_done_callback(self._starts.discard)

    async def _cut(self, machine: Machine) -> bool:
        assert machine.host is not None
        await asyncio.to_thread(machine.host.cut)
        try:
            await asyncio.sleep(CUT_SECONDS)
        finally:
            await asyncio.to_thread(machine.host.mend)
        return True

    async def _slow_down(self, machine: Machine) -> bool:
        machine.slow_down(SLOW_DELAY)
        try:
            await asyncio.sleep(SLOW_SECONDS)
        finally:
            machine.slow_down(0.0)
        return True

    async def _leave(self, machine: Machine) -> bool:
        """A core is taken out, and added again."""
        index = next(core.index for core in self._client.cores if core.address == machine.address)
        await self._client.remove_core(index, LEAVE_SECONDS)
        end = time.monotonic() + DEADLINE
        while True:
            await asyncio.sleep(OFF_SECONDS)
            try:
                await self._client.add_core(machine.address)
            except EngineDeadError:  # It was ended just before, and starts.
                if time.monotonic() > end:
                    raise
            else:
                return True

    async def _poison(self, victim: poison.Victim) -> bool:
        self.num_poisoned += 1
        stream = self._load.start(make_poisoned(self.num_poisoned, victim, self._record, self._choose))
        end = time.monotonic() + POISON_LIMIT
        while not stream.has_ended and (now := time.monotonic()) < end:
            self.observer.observe(now)
            await asyncio.sleep(OBSERVE_INTERVAL)
        return True


def pauses_by_fault(faults: Sequence[Fault], pauses: Sequence[Pause]) -> Mapping[str, dict[str, Any]]:
    """For each kind: how many faults there were, the longest pause after each (median and longest), and all pauses.

    In seconds; of those that came of no fault the kind is "none".
    """
    of_fault: dict[Fault | None, list[float]] = {fault: [] for fault in (*faults, None)}
    for pause in pauses:
        before = [
            fault for fault in faults if fault.begin < pause.begin + ONSET and pause.begin < fault.end + AFTERMATH
        ]
        cause = max(before, key=lambda fault: fault.begin, default=None)
        of_fault[cause].append(pause.end - pause.begin)
    by_kind: dict[str, list[list[float]]] = {}
    for fault, lengths in of_fault.items():
        by_kind.setdefault("none" if fault is None else fault.kind, []).append(lengths)
    return {
        kind: {
            "faults": len(each) if kind != "none" else 0,
            "longest_s": round(max(max(lengths, default=0.0) for lengths in each), 2),
            "median_s": round(median(max(lengths, default=0.0) for lengths in each), 2),
            "pauses": sum(map(len, each)),
        }
        for kind, each in by_kind.items()
    }
