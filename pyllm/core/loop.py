"""The EngineCore: clients' messages go into the scheduler, plans to the executor, committed tokens back to clients.

Knows token ids, not text. Reads no clock but the one it is given, starts no process and touches no tensor.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from mmap import mmap
from typing import Any, NamedTuple

import msgspec

from pyllm import black_box
from pyllm._rust import NeverFitsError, Plan, Scheduler
from pyllm.black_box import BlackBox
from pyllm.config import EngineConfig
from pyllm.core.admission import check_submit
from pyllm.core.calls import Calls
from pyllm.core.clients import Clients
from pyllm.core.crash import Crash, crash_report
from pyllm.core.executors.base import Executor
from pyllm.core.policies import Policy, facts, policy_key
from pyllm.core.quarantine import Name
from pyllm.core.recording import Recording
from pyllm.core.recovery import Recovery
from pyllm.core.stalls import StallWatch
from pyllm.core.turn import Turn
from pyllm.errors import RequestError, WorkerDeadError
from pyllm.ipc import Sender
from pyllm.messages import (
    PROTOCOL_VERSION,
    Abort,
    Call,
    ClientMessage,
    CoreMessage,
    CoreStage,
    Deltas,
    Heartbeat,
    Hello,
    Ready,
    Rejected,
    Reply,
    Sampled,
    Submit,
)
from pyllm.restart_budget import RestartBudget

logger = logging.getLogger(__name__)


class EngineCore:
    """One mailbox, one scheduler, one executor.

    `depth` is the number of steps in flight: with 2, step k+1 is planned before step k's tokens are known. `config` has
    the settings that the scheduler was made with, `policy` gives requests their keys where it is of another package,
    `recording` keeps what the scheduler is told, and `logits_processors` are the names of those that workers can load.
    `on_crash` is given a name and what is known of each death of workers, as files by their names. `token_seconds` is
    what a token takes in a step at most; 0: that is not known. `on_alone` is told whenever it changes whether what ends
    this process from now on is the doing of one request. `memory`, of `black_box.size` bytes that are zeros, has the
    last steps when this process has ended.
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
        logits_processors: Collection[str] = (),
        token_seconds: float = 0.0,
        on_crash: Callable[[str, Mapping[str, bytes]], object] = lambda name, parts: None,
        on_alone: Callable[[bool], object] = lambda is_alone: None,
        memory: mmap | bytearray | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.last_step = -1
        self.malformed_frames = 0
        self._scheduler = scheduler
        self._executor = executor
        self._ready = ready
        self._config = config
        self._clock = clock
        self._depth = depth
        self._clients = Clients(sender, self._take_deltas, scheduler.drop_client)
        self._calls = Calls(scheduler, config, policy, self.stats)
        self._recording = recording
        self._logits_processors = logits_processors
        self._token_seconds = token_seconds
        self._in_flight: deque[_InFlight] = deque()
        budget = RestartBudget(config.recovery.max_restarts)
        shrink = self._calls.halve_budget
        self._recovery = Recovery(scheduler, executor, budget, shrink=shrink, clock=clock, sleep=sleep)
        self._quarantine = self._recovery.quarantine
        self._turn = Turn(self._quarantine, scheduler, ready.epoch, self._clients.post, on_alone)
        memory = bytearray(black_box.size(config.scheduler.max_num_seqs)) if memory is None else memory
        self._black_box = BlackBox(memory, ready.epoch)
        self._stalls = StallWatch()
        self._on_crash = on_crash
        self._told: tuple[CoreStage, str] = ("ready", "")  # what clients know of the stage
        self._last_commit = 0.0  # when, by the clock
        self._wake = asyncio.Event()
        self._draining = False
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, identity: bytes, message: ClientMessage) -> None:
        """Take one message in; it acts at once on the scheduler, so that nothing queues up in Python."""
        if isinstance(message, Hello):
            self._hello(identity, message)
            return
        client = self._clients.seen(identity)
        if client is None:
            client = self._clients.register(identity)
            self._clients.post(client, Rejected(None, "hello", "say Hello first: this core does not know you"))
            return
        match message:
            case Submit():
                self._submit(client, message, self._clock())
            case Abort(epoch, request, sample) if epoch == self._ready.epoch:
                self._scheduler.abort(client, request, sample)
                self._clients.deliver(self._scheduler.pending_clients())
            case Call(epoch, number, method, args) if epoch == self._ready.epoch:
                self._clients.post(client, self._call(client, number, method, args))
            case _:
                return  # A heartbeat, whose arrival was noted above, or a message of an epoch that is over.
        self._gather()
        self._wake.set()

    def malformed(self, identity: bytes, text: str) -> None:
        """A frame that did not decode: tell its sender, count it, and go on."""
        self.malformed_frames += 1
        client = self._clients.register(identity)
        self._clients.post(client, Rejected(None, "malformed", f"this frame does not decode: {text}"))

    def beat(self) -> None:
        """Send heartbeats and what slow clients did not take before, and drop silent ones; call it at 2 Hz."""
        now = self._clock()
        self._clients.beat()
        if self._recovery.reason:
            self._scheduler.expire(now)  # Nothing else does while nothing is planned.
        self._clients.deliver(self._scheduler.pending_clients())
        self._look_at_step(now)
        self._tell_stage(again=True)
        if self._recording is not None:
            self._recording.gather()
            self._recording.flush()
        # Deadlines pass without a message, and end what is held or waits as well. Idle workers die without one, too.
        if self._draining or self._executor.death is not None or self._scheduler.stats()["num_requests"]:
            self._wake.set()

    def stats(self) -> dict[str, int]:
        """The scheduler's gauges and counters, and this core's."""
        return {
            **self._scheduler.stats(),
            "num_clients": len(self._clients),
            "malformed_frames": self.malformed_frames,
            "num_recoveries": self._recovery.num_recoveries,
            "num_suspects": len(self._quarantine),
            "num_quarantine_failures": self._quarantine.num_failures,
            "num_degradations": self._recovery.num_degradations,
        }

    async def run(self) -> None:
        """Step until `drain` was called and nothing is left or owed, sleeping while there is nothing to do.

        What it raises ends the core, and no client is told: they resubmit to the one that takes its place.

        Raises:
            GivenUpError: the workers died too often.
        """
        while True:
            if not await self.step():
                if self._draining and not self._scheduler.pending_clients() and not self.stats()["num_requests"]:
                    return
                self._wake.clear()
                await self._wake.wait()

    async def step(self) -> bool:
        """Plan as many steps as may be in flight, then commit the oldest; False when there was nothing to do.

        Where a worker has died it returns when others are there.

        Raises:
            GivenUpError: the workers died too often.
        """
        depth = self._depth
        if self._quarantine:
            self._turn.advance()
            depth = 1
        # What is planned for dead workers is in no step of theirs.
        while len(self._in_flight) < depth and self._executor.death is None and (plan := self._plan()) is not None:
            if self._quarantine:
                self._turn.tell()
            self._scheduler.note_step(plan, self._black_box.note(plan.step))
            self._in_flight.append(_InFlight(plan.step, plan.num_tokens, self._clock(), self._executor.submit(plan)))
        if not self._in_flight:
            if (death := self._executor.death) is not None:
                await self._recover(death)
                return True
            self._clients.deliver(self._scheduler.pending_clients())  # Deadlines may have passed.
            self._gather()
            return self._quarantine.is_next_due  # Where a suspect has just ended, there may be more to do.
        step, _, submitted, answer = self._in_flight[0]
        try:
            sampled = await answer
        except WorkerDeadError as death:
            await self._recover(death)
            return True
        self._in_flight.popleft()
        answered = self._clock()
        seconds = answered - max(submitted, self._last_commit)
        self._last_commit = answered
        self._end_failed(step, sampled)
        logprobs = None if sampled.logprobs is None else msgspec.structs.astuple(sampled.logprobs)
        embeddings = None if sampled.embeddings is None else msgspec.structs.astuple(sampled.embeddings)
        clients = self._scheduler.commit(step, sampled.starts, sampled.tokens, seconds, logprobs, embeddings)
        self._clients.deliver(clients)
        self._gather()
        self._black_box.end(step)
        self.last_step = step
        return True

    def drain(self) -> None:
        """Refuse new requests from now on, and let `run` return when the last one has ended."""
        self._draining = True
        self._wake.set()

    def abandon(self, reason: str) -> None:
        """Tell every client that its requests end here."""
        self._clients.post_all(Rejected(None, "engine_dead", reason))

    def close(self) -> None:
        """Finish the recording; may be called twice."""
        if self._recording is not None:
            self._recording.close()

    async def _recover(self, death: WorkerDeadError) -> None:
        """The workers are gone, with all that was in flight: have others, and go on with the same requests."""
        steps = [each.step for each in self._in_flight]
        crash = Crash(death, self._ready.epoch, steps, self._scheduler.requests_in_flight())
        self._on_crash(f"worker-{death.cause}", crash_report(crash, self._scheduler, self.stats(), self._config))
        for each in self._in_flight:
            _forget(each.answer)
        if steps:
            self._black_box.end(steps[-1])
        self._in_flight.clear()
        self._stalls.rest()
        self._turn.lose_workers()
        verdict = self._recovery.begin(crash)
        self._tell_stage()
        if verdict is not None:
            self._fail(*verdict.name, Rejected(verdict.name.request, "error", verdict.reason))
        self._clients.deliver(self._scheduler.pending_clients())
        await self._recovery.end(death)
        self._tell_stage()

    def _look_at_step(self, now: float) -> None:
        """Whether the oldest step in flight is stalled; workers that are stuck in it are ended."""
        if not self._in_flight or self._recovery.reason:
            self._stalls.rest()
            return
        step, num_tokens, *_ = self._in_flight[0]
        was_hopeless = self._stalls.is_hopeless
        most = self._token_seconds * num_tokens if self._token_seconds else None
        self._stalls.look(now, step, self._scheduler.expected_seconds(step), most)
        if self._stalls.is_hopeless and not was_hopeless:
            self._executor.kill("stalled")

    def _tell_stage(self, again: bool = False) -> None:
        """Let the clients know when the stage has changed, or in any case `again`."""
        stage = self._stage()
        if again or stage != self._told:
            self._told = stage
            self._clients.post_all(self._heartbeat())

    def _heartbeat(self) -> Heartbeat:
        stage, reason = self._told
        return Heartbeat(stage, self.last_step, reason)

    def _stage(self) -> tuple[CoreStage, str]:
        """What this core does, and why it is not ready."""
        if self._recovery.reason:
            return "recovering", self._recovery.reason
        if self._stalls.is_stalled:
            return "stalled", self._stalls.reason
        return ("draining", "the engine is shutting down") if self._draining else ("ready", "")

    def _plan(self) -> Plan | None:
        return self._scheduler.schedule(self._clock())

    def _hello(self, identity: bytes, message: Hello) -> None:
        client = self._clients.register(identity)
        if message.version != PROTOCOL_VERSION:
            text = f"this core speaks version {PROTOCOL_VERSION} of the protocol, you said {message.version}"
            self._clients.post(client, Rejected(None, "version", text))
        else:
            self._clients.post(client, self._ready)
            if self._told[0] != "ready":
                self._clients.post(client, self._heartbeat())

    def _submit(self, client: int, submit: Submit, now: float) -> None:
        if submit.epoch != self._ready.epoch:
            return
        if self._draining and not submit.outputs:  # What goes on from elsewhere was running when the end was asked for.
            self._clients.post(client, Rejected(submit.request, "draining", "the engine is shutting down"))
            return
        policy = self._calls.policy
        try:
            check_submit(submit, self._ready.model, self._logits_processors)
            self._scheduler.add(
                client,
                submit.request,
                submit.prompt,
                seed=submit.seed,
                max_tokens=submit.max_tokens,
                n=submit.n,
                min_tokens=submit.min_tokens,
                stop_token_ids=submit.stop_token_ids,
                sampling=self._encoder.encode(submit.sampling),
                outputs=[(output.tokens, output.finished) for output in submit.outputs],
                arrival=now - submit.age,
                deadline=None if submit.timeout is None else now + submit.timeout,
                ttft_target=submit.ttft_target,
                tpot_target=submit.tpot_target,
                priority=submit.priority,
                policy_key=0.0 if policy is None else policy_key(policy, facts(submit, now)),
                tenant=submit.tenant,
                cache_salt=submit.cache_salt,
                adapter=submit.adapter,
                stateful=submit.sampling.is_stateful,
                prompt_logprobs=submit.sampling.prompt_logprobs is not None,
                beam_width=submit.beam_width,
                length_penalty=submit.length_penalty,
                pooling=bool(submit.sampling.pooling),
            )
            self._quarantine.admit(Name(client, submit.request), submit.num_losses)
        except NeverFitsError as error:
            self._clients.post(client, Rejected(submit.request, "too_large", str(error)))
        except ValueError as error:
            parameter = error.parameter if isinstance(error, RequestError) else None
            self._clients.post(client, Rejected(submit.request, "invalid", str(error), parameter))

    def _end_failed(self, step: int, sampled: Sampled) -> None:
        """End the requests whose rows a worker could not do; it says why, and which are not to blame for it."""
        for row, reason in sampled.failures.items():
            owner = self._scheduler.request_of(step, row)
            if owner is not None:  # Another row of the request may have been first.
                client, request = owner
                code = "error" if row in sampled.faults else "failed"
                self._fail(client, request, Rejected(request, code, reason, sampled.parameters.get(row)))

    def _fail(self, client: int, request: int, rejected: Rejected) -> None:
        self._clients.post(client, rejected)
        self._scheduler.abort(client, request)

    def _call(self, client: int, number: int, method: str, args: tuple[Any, ...]) -> Reply:
        try:
            return Reply(number, True, self._calls.answer(client, method, args))
        except RequestError as error:
            return Reply(number, False, str(error))

    def _gather(self) -> None:
        if self._recording is not None:
            self._recording.gather()

    def _take_deltas(self, client: int) -> Deltas | None:
        columns = self._scheduler.take_deltas(client)
        return None if columns is None else Deltas(self._ready.epoch, *columns)


class _InFlight(NamedTuple):
    step: int
    num_tokens: int
    submitted: float  # when
    answer: Awaitable[Sampled]


def _forget(answer: Awaitable[Sampled]) -> None:
    """Nobody will await it; what it holds is no error of anyone's."""
    future = asyncio.ensure_future(answer)
    if not future.cancel() and not future.cancelled():
        future.exception()
