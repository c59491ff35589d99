"""The EngineCore: schedules steps, submits them to the executor, commits their tokens and delivers these to clients.

Knows token ids, not text. Starts no process, touches no tensor, and gets its clock from outside.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from pyllm._rust import Plan, Scheduler
from pyllm.config.engine_settings import EngineConfig
from pyllm.core.adapters import Adapters
from pyllm.core.clients import Clients
from pyllm.core.executors.executor import Executor
from pyllm.core.faults.crash import Crash, crash_report
from pyllm.core.faults.isolation_reporter import IsolationReporter
from pyllm.core.faults.recovery import Recovery
from pyllm.core.inbox import Inbox
from pyllm.core.kept_state import KeptState
from pyllm.core.kv.kv_transfers import KVTransfers
from pyllm.core.load_reports import LoadReporter
from pyllm.core.pausing import Pausing
from pyllm.core.profiling import Profiling
from pyllm.core.sleeping import Sleeping
from pyllm.core.stage import Stage
from pyllm.core.steps_in_flight import StepsInFlight
from pyllm.core.weight_versions import Weights
from pyllm.errors import WorkerDeadError
from pyllm.recording import Recording
from pyllm.wire.messages import ClientMessage, Rejected, Sampled


class CoreParts(NamedTuple):
    """The parts of a core; `composition.compose` makes them.

    `depth` is the number of steps in flight. `publish` is called before each step, and `on_crash` when workers have
    died, with a name and a report: contents by file name.
    """

    scheduler: Scheduler
    executor: Executor
    config: EngineConfig
    epoch: int
    depth: int
    clock: Callable[[], float]
    publish: Callable[[], object]
    on_crash: Callable[[str, Mapping[str, bytes]], object]
    recording: Recording | None
    clients: Clients
    inbox: Inbox
    in_flight: StepsInFlight
    transfers: KVTransfers
    adapters: Adapters
    pausing: Pausing
    weights: Weights
    sleeping: Sleeping
    recovery: Recovery
    isolation: IsolationReporter
    stage: Stage
    load_reporter: LoadReporter
    kept: KeptState
    profiling: Profiling


class EngineCore:
    """The loop over one inbox, one scheduler and one executor."""

    def __init__(self, parts: CoreParts) -> None:
        self._scheduler = parts.scheduler
        self._executor = parts.executor
        self._config = parts.config
        self._epoch = parts.epoch
        self._depth = parts.depth
        self._clock = parts.clock
        self._publish = parts.publish
        self._on_crash = parts.on_crash
        self._recording = parts.recording
        self._clients = parts.clients
        self._inbox = parts.inbox
        self._in_flight = parts.in_flight
        self._transfers = parts.transfers
        self._adapters = parts.adapters
        self._pausing = parts.pausing
        self._weights = parts.weights
        self._sleeping = parts.sleeping
        self._recovery = parts.recovery
        self._quarantine = parts.recovery.quarantine
        self._isolation = parts.isolation
        self._stage = parts.stage
        self._load_reporter = parts.load_reporter
        self._kept = parts.kept
        self._profiling = parts.profiling
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Step, and sleep while idle, until `drain` was called and nothing is left to compute or send.

        An exception ends the core without a message to clients: they resubmit to the core that replaces it.

        Raises:
            GivenUpError: the workers died too often.
        """
        while True:
            if not await self.step():
                if self._stage.is_draining and not self._scheduler.pending_clients() and not self._has_requests():
                    return
                self._wake.clear()
                await self._wake.wait()

    async def step(self) -> bool:
        """Schedule and submit steps while there is room, then commit the oldest; False if there was nothing to do.

        If the workers died, it returns when new ones have taken over.

        Raises:
            GivenUpError: the workers died too often.
        """
        self._isolation.advance()
        self._transfers.advance()
        self._adapters.advance()
        self._pausing.advance()
        self._publish()
        while (plan := self._schedule()) is not None:
            self._submit(plan)
        self._transfers.flush()
        if not self._in_flight:
            return await self._idle()
        try:
            step, sampled, seconds = await self._in_flight.wait_oldest()
        except WorkerDeadError as death:
            await self._recover(death)
        else:
            # Transfers come first: a load that the step has read may have failed.
            if self._transfers.receive(sampled.transfers):
                self._commit(step, sampled, seconds)
            else:
                self._in_flight.drop(step)
        return True

    def _schedule(self) -> Plan | None:
        """The next plan; None if enough steps are in flight, the workers are dead, or there is nothing to do."""
        depth = 1 if self._quarantine else self._depth
        if len(self._in_flight) >= depth or self._executor.death is not None:
            return None
        return self._scheduler.schedule(self._clock())

    def _submit(self, plan: Plan) -> None:
        """Send a plan to the workers, without waiting for them."""
        self._isolation.announce()
        self._in_flight.submit(plan, self._transfers.take(with_step=True))

    def _commit(self, step: int, sampled: Sampled, seconds: float) -> None:
        """Commit a step's tokens to the scheduler, and deliver its output to the clients."""
        self._end_failed(step, sampled)
        logprobs = None if sampled.logprobs is None else msgspec.structs.astuple(sampled.logprobs)
        embeddings = None if sampled.embeddings is None else msgspec.structs.astuple(sampled.embeddings)
        clients = self._scheduler.commit(step, sampled.starts, sampled.tokens, seconds, logprobs, embeddings)
        self._clients.deliver(clients)
        self._gather()
        self._in_flight.committed(step)
        self._load_reporter.send()
        if self._profiling.is_running:
            self._profiling.committed()

    async def _idle(self) -> bool:
        """Handle events without a step: idle workers may have died, and deadlines may have passed."""
        if (death := self._executor.death) is not None:
            await self._recover(death)
            return True
        self._clients.deliver(self._scheduler.pending_clients())
        self._load_reporter.send(at_once=True)
        self._gather()
        if self._transfers.is_busy:
            await self._transfers.wait()
            return True
        return self._quarantine.is_next_due  # After the end of a suspect the next one can run.

    async def _recover(self, death: WorkerDeadError) -> None:
        """Report the crash, start new workers, and go on with the same requests."""
        requests = self._scheduler.requests_in_flight()
        crash = Crash(death, self._epoch, self._in_flight.lose(), requests)
        self._on_crash(f"worker-{death.cause}", crash_report(crash, self._scheduler, self.stats(), self._config))
        self._isolation.workers_lost()
        self._weights.workers_lost()
        self._profiling.interrupt(str(death))
        self._transfers.lose()
        verdict = self._recovery.begin(crash)
        self._stage.send_changes()
        if verdict is not None:
            self.fail(*verdict.key, Rejected(verdict.key.request, "error", verdict.reason))
        self._clients.deliver(self._scheduler.pending_clients())
        await self._recovery.end(death)
        self._transfers.recovered()
        self._stage.send_changes()

    def receive(self, identity: bytes, message: ClientMessage) -> None:
        """Handle one message. It acts on the scheduler at once, so nothing queues up in Python."""
        if self._inbox.receive(identity, message):
            self._gather()
            self._wake.set()

    def wake(self) -> None:
        """Look again for something to do, as a request may run now."""
        self._wake.set()

    def malformed(self, identity: bytes, text: str) -> None:
        """Count a frame that did not decode, and tell its sender."""
        self._inbox.malformed(identity, text)

    def beat(self) -> None:
        """Send heartbeats and held messages, drop silent clients, check for stalls; call it at 2 Hz."""
        now = self._clock()
        self._clients.beat()
        if self._recovery.reason:
            self._scheduler.expire(now)  # Scheduling does this otherwise.
        self._clients.deliver(self._scheduler.pending_clients())
        self._in_flight.watch(now)
        self._stage.send()
        self._load_reporter.send(at_once=True)
        self._gather()
        if self._recording is not None:
            self._recording.flush()
        # Deadlines pass and idle workers die without a message: let `step` look.
        if self._stage.is_draining or self._executor.death is not None or self._has_requests():
            self._wake.set()

    def stats(self) -> dict[str, int]:
        """The gauges and counters of the scheduler and of this core."""
        return {
            **self._scheduler.stats(),
            "num_clients": len(self._clients),
            "malformed_frames": self._inbox.num_malformed,
            "num_recoveries": self._recovery.num_recoveries,
            "num_suspects": len(self._quarantine),
            "num_quarantine_failures": self._quarantine.num_failures,
            "num_degradations": self._recovery.num_degradations,
            **self._sleeping.stats(),
            **self._transfers.stats(),
        }

    def stats_for_client(self) -> dict[str, int]:
        """Return `stats`, and make idle ranks report figures, for a later call."""
        if not self._in_flight:
            self._transfers.request_figures()
        return self.stats()

    @property
    def last_step(self) -> int:
        """The last committed step; -1 before the first."""
        return self._in_flight.last_step

    def fail(self, client: int, request: int, rejected: Rejected) -> None:
        """End a request, and tell its client why."""
        self._clients.post(client, rejected)
        self._scheduler.abort(client, request)

    def drain(self) -> None:
        """Refuse new requests from now on; `run` returns when the last one has ended."""
        self._stage.is_draining = True
        self._stage.send_changes()  # Before the first refusal: a client of several cores would send it here again.
        self._wake.set()

    def abandon(self, reason: str) -> None:
        """Tell every client that its requests at this core end."""
        self._clients.post_all(Rejected(None, "engine_dead", reason))

    async def finish_transfers(self) -> None:
        """Let the ranks write KV blocks that are being saved; no step may follow."""
        await self._transfers.finish()

    def close(self) -> None:
        """Finish the recording, and shut the connector down; may be called twice."""
        self._transfers.close()
        if self._recording is not None:
            self._recording.close()

    def _end_failed(self, step: int, sampled: Sampled) -> None:
        """End the requests whose rows failed in a worker. Rows in `faults` failed through no fault of their request."""
        for row, reason in sampled.failures.items():
            owner = self._scheduler.request_of(step, row)
            if owner is not None:  # Another row of the request may have failed first.
                client, request = owner
                code = "error" if row in sampled.faults else "failed"
                self.fail(client, request, Rejected(request, code, reason, sampled.parameters.get(row)))

    def _has_requests(self) -> bool:
        return self._scheduler.stats()["num_requests"] > 0

    def _gather(self) -> None:
        self._transfers.ended(self._kept.gather())
        if self._recording is not None:
            self._recording.gather()
