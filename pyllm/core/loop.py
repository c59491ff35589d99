"""The EngineCore: schedules steps, submits them to the executor, commits their tokens and delivers these to clients.

Knows token ids, not text. Starts no process, touches no tensor, and gets its clock from outside.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from mmap import mmap

import msgspec

from pyllm._rust import Plan, Scheduler
from pyllm.config.engine_settings import EngineConfig
from pyllm.core.calls import Calls
from pyllm.core.clients import Clients
from pyllm.core.executors.executor import Executor
from pyllm.core.executors.host_inventory import HostInventory
from pyllm.core.faults.crash import Crash, crash_report
from pyllm.core.faults.isolation_reporter import IsolationReporter
from pyllm.core.faults.recovery import Recovery
from pyllm.core.inbox import Inbox
from pyllm.core.kept_state import KeptState
from pyllm.core.kv_transfers import KVTransfers
from pyllm.core.load_reports import LoadReporter
from pyllm.core.lost_requests import LostRequests
from pyllm.core.policy_plugins import Policy
from pyllm.core.profiling import Profiling
from pyllm.core.reservation import Reservation
from pyllm.core.stage import Stage
from pyllm.core.steps_in_flight import StepsInFlight
from pyllm.errors import WorkerDeadError
from pyllm.kv_transfer import SchedulerConnector
from pyllm.recording import Recording
from pyllm.supervision import step_trace
from pyllm.supervision.restart_budget import RestartBudget
from pyllm.wire.ipc import Sender
from pyllm.wire.messages import ClientMessage, CoreMessage, Deltas, Ready, Rejected, Sampled
from pyllm.wire.supervision_messages import Kept

NOTHING_KEPT = Kept()


class EngineCore:
    """One inbox, one scheduler, one executor.

    `depth` is the number of steps in flight: with 2, step k+1 is planned before step k's tokens are known; a pipeline
    has one per stage, with different sequences. `config` has the settings of the scheduler, `policy` is a scheduling
    policy of another package, `recording` keeps the scheduler's calls, `connector` moves KV blocks to and from outside,
    and `sampling_plugins` names the logits processors and samplers that workers can load. `token_seconds` is the
    measured upper bound per token in a step, 0 if none was measured. `on_crash` is called when workers die, with a name
    and a report: contents by file name. `on_alone(True)` is called when a step runs one suspect alone, so that it is to
    blame for a crash of this process, and `on_alone(False)` when that ends. `memory`, `step_trace.size` zero bytes,
    keeps a trace of the last steps after this process ends. `publish` is called before each step. `earlier` is the
    state of the core before, and `keep` is called with state for the next one. `set_log_level` is None in a process
    that is not the core's own.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        sender: Sender[CoreMessage],
        ready: Ready,
        *,
        config: EngineConfig,
        clock: Callable[[], float],
        depth: int = 1,
        policy: Policy | None = None,
        recording: Recording | None = None,
        connector: SchedulerConnector | None = None,
        sampling_plugins: Collection[str] = (),
        token_seconds: float = 0.0,
        on_crash: Callable[[str, Mapping[str, bytes]], object] = lambda name, parts: None,
        on_alone: Callable[[bool], object] = lambda is_alone: None,
        publish: Callable[[], object] = lambda: None,
        memory: mmap | bytearray | None = None,
        earlier: Kept = NOTHING_KEPT,
        keep: Callable[[Kept], object] = lambda kept: None,
        set_log_level: Callable[[str], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._config = config
        self._epoch = ready.epoch
        self._clock = clock
        self._depth = depth
        self._recording = recording
        self._on_crash = on_crash
        self._publish = publish
        self._clients = Clients(sender, self._take_deltas, scheduler.drop_client)
        self._profiling = Profiling(executor, lambda: len(self._in_flight), clock=clock, sleep=sleep)
        self._kept = KeptState(scheduler, earlier, keep)
        self._transfers = KVTransfers(
            scheduler,
            executor,
            connector,
            clock=clock,
            sleep=sleep,
            fail=lambda client, request, reason: self._fail(client, request, Rejected(request, "error", reason)),
        )
        inventory = HostInventory(scheduler, executor)
        self._calls = Calls(
            scheduler,
            config,
            policy,
            self._stats_for_client,
            clock,
            profiling=self._profiling,
            inventory=inventory,
            kept=self._kept,
            set_log_level=set_log_level,
        )
        memory = bytearray(step_trace.size(config.scheduler.max_num_seqs)) if memory is None else memory
        self._in_flight = StepsInFlight(
            scheduler, executor, clock=clock, memory=memory, epoch=ready.epoch, token_seconds=token_seconds
        )
        budget = RestartBudget(config.recovery.max_restarts)
        shrink = self._calls.halve_budget
        self._recovery = Recovery(
            scheduler,
            executor,
            budget,
            shrink=shrink,
            connect=self._transfers.connect,
            inventory=inventory,
            clock=clock,
            sleep=sleep,
        )
        self._quarantine = self._recovery.quarantine
        self._isolation = IsolationReporter(self._quarantine, scheduler, ready.epoch, self._clients.post, on_alone)
        self._stage = Stage(self._clients, self._recovery, self._in_flight)
        reservation, lost_requests = Reservation(clock), LostRequests(scheduler)
        self._load_reporter = LoadReporter(
            scheduler, self._clients, reservation, lost_requests, epoch=ready.epoch, clock=clock
        )
        self._inbox = Inbox(
            scheduler,
            clients=self._clients,
            calls=self._calls,
            quarantine=self._quarantine,
            stage=self._stage,
            load_reporter=self._load_reporter,
            reservation=reservation,
            lost_requests=lost_requests,
            transfers=self._transfers,
            ready=ready,
            clock=clock,
            sampling_plugins=sampling_plugins,
        )
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
        self._profiling.interrupt(str(death))
        self._transfers.lose()
        verdict = self._recovery.begin(crash)
        self._stage.send_changes()
        if verdict is not None:
            self._fail(*verdict.key, Rejected(verdict.key.request, "error", verdict.reason))
        self._clients.deliver(self._scheduler.pending_clients())
        await self._recovery.end(death)
        self._transfers.recovered()
        self._stage.send_changes()

    def receive(self, identity: bytes, message: ClientMessage) -> None:
        """Handle one message. It acts on the scheduler at once, so nothing queues up in Python."""
        if self._inbox.receive(identity, message):
            self._gather()
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
            **self._transfers.stats(),
        }

    def _stats_for_client(self) -> dict[str, int]:
        """Return `stats`, and make idle ranks report figures, for a later call."""
        if not self._in_flight:
            self._transfers.request_figures()
        return self.stats()

    @property
    def last_step(self) -> int:
        """The last committed step; -1 before the first."""
        return self._in_flight.last_step

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
                self._fail(client, request, Rejected(request, code, reason, sampled.parameters.get(row)))

    def _fail(self, client: int, request: int, rejected: Rejected) -> None:
        self._clients.post(client, rejected)
        self._scheduler.abort(client, request)

    def _has_requests(self) -> bool:
        return self._scheduler.stats()["num_requests"] > 0

    def _gather(self) -> None:
        self._transfers.ended(self._kept.gather())
        if self._recording is not None:
            self._recording.gather()

    def _take_deltas(self, client: int) -> Deltas | None:
        columns = self._scheduler.take_deltas(client)
        return None if columns is None else Deltas(self._epoch, *columns)
