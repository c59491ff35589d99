"""Handles clients' messages: hello, submit, abort, reserve, call. Each acts on the scheduler at once.

Answers refused messages. Plans nothing and delivers no tokens.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from pyllm._rust import NeverFitsError, Scheduler
from pyllm.core.adapters import Adapters
from pyllm.core.calls import Calls
from pyllm.core.clients import Clients
from pyllm.core.faults.lost_requests import LostRequests
from pyllm.core.faults.quarantine import Quarantine, RequestKey
from pyllm.core.kv.kv_transfers import KVTransfers
from pyllm.core.load_reports import LoadReporter
from pyllm.core.policy_plugins import facts, policy_key
from pyllm.core.stage import Stage
from pyllm.core.validation import check_submit
from pyllm.errors import RequestError
from pyllm.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    AdapterList,
    Call,
    ClientMessage,
    Hello,
    Ready,
    Rejected,
    Reply,
    Reserve,
    Submit,
)

logger = logging.getLogger(__name__)

# The scheduler's names where they differ. It knows no `cls`, which needs the whole prompt as `mean` does.
_SCHEDULED_POOLING = {"": "none", "cls": "mean"}

# The text for a request of a lost core.
OTHER_WEIGHTS = "the engine has other weights now than this request has begun with"


class Inbox:
    """`ready` answers a hello, and changes with the weights. Workers can load `sampling_plugins`, by their names."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clients: Clients,
        calls: Calls,
        quarantine: Quarantine,
        stage: Stage,
        load_reporter: LoadReporter,
        lost_requests: LostRequests,
        transfers: KVTransfers,
        adapters: Adapters,
        ready: Ready,
        clock: Callable[[], float],
        sampling_plugins: Collection[str],
    ) -> None:
        self.num_malformed = 0
        self._scheduler = scheduler
        self._clients = clients
        self._calls = calls
        self._quarantine = quarantine
        self._stage = stage
        self._load_reporter = load_reporter
        self._lost_requests = lost_requests
        self._transfers = transfers
        self._adapters = adapters
        self.ready = ready
        self._clock = clock
        self._sampling_plugins = sampling_plugins
        self._encoder = msgspec.msgpack.Encoder()
        self._unanswered: set[asyncio.Task[None]] = set()  # calls; asyncio keeps only weak references to tasks

    def receive(self, identity: bytes, message: ClientMessage) -> bool:
        """Handle one message; False if it gives the core nothing to do."""
        if isinstance(message, Hello):
            self._hello(identity, message)
            return False
        client = self._clients.seen(identity)
        if client is None:
            client = self._clients.register(identity)
            self._clients.post(client, Rejected(None, "hello", "say Hello first: this core does not know you"))
            return False
        match message:
            case Submit():
                self._submit(client, message, self._clock())
            case Abort(epoch, request, sample) if epoch == self.ready.epoch:
                self._scheduler.abort(client, request, sample)
                self._clients.deliver(self._scheduler.pending_clients())
            case Call(epoch, number, method, args) if epoch == self.ready.epoch:
                self._call(client, number, method, args)
            case Reserve(epoch) if epoch == self.ready.epoch:
                self._load_reporter.reserve()
                return False
            case _:
                return False  # It is a heartbeat, which `seen` noted, or a message of an earlier epoch.
        return True

    def malformed(self, identity: bytes, text: str) -> None:
        """Count a frame that did not decode, and tell its sender."""
        self.num_malformed += 1
        client = self._clients.register(identity)
        self._clients.post(client, Rejected(None, "malformed", f"this frame does not decode: {text}"))

    def _hello(self, identity: bytes, message: Hello) -> None:
        client = self._clients.register(identity)
        if message.version != PROTOCOL_VERSION:
            text = f"this core speaks version {PROTOCOL_VERSION} of the protocol, you said {message.version}"
            self._clients.post(client, Rejected(None, "version", text))
        else:
            self._clients.post(client, self.ready)
            if (listed := self._adapters.listed) is not None:
                self._clients.post(client, AdapterList(self.ready.epoch, listed))
            self._stage.greet(client)
            if message.wants_load_reports:
                self._load_reporter.add(client)
                self._load_reporter.send(at_once=True)

    def _submit(self, client: int, submit: Submit, now: float) -> None:
        if submit.epoch != self.ready.epoch:
            return
        # A request with outputs ran on another core before the shutdown began: it may finish here.
        if self._stage.is_draining and not submit.outputs:
            self._clients.post(client, Rejected(submit.request, "draining", "the engine is shutting down"))
            return
        if submit.weights_version not in {None, self.ready.model.weights_version}:
            self._clients.post(client, Rejected(submit.request, "weights", OTHER_WEIGHTS))
            return
        self._load_reporter.note(client, submit.request)
        policy = self._calls.policy
        try:
            check_submit(submit, self.ready.model, self._sampling_plugins)
            adapter, adapter_number = self._adapters.find(submit.adapter)
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
                name=submit.name,
                outputs=[(output.tokens, output.finished) for output in submit.outputs],
                arrival=now - submit.age,
                deadline=None if submit.timeout is None else now + submit.timeout,
                ttft_target=submit.ttft_target,
                tpot_target=submit.tpot_target,
                priority=submit.priority,
                policy_key=0.0 if policy is None else policy_key(policy, facts(submit, now)),
                tenant=submit.tenant,
                cache_salt=submit.cache_salt,
                adapter=adapter,
                adapter_number=adapter_number,
                stateful=submit.sampling.is_stateful,
                prompt_logprobs=submit.sampling.prompt_logprobs is not None,
                num_logprobs=submit.sampling.num_logprobs,
                beam_width=submit.beam_width,
                length_penalty=submit.length_penalty,
                pooling=_SCHEDULED_POOLING.get(submit.sampling.pooling, submit.sampling.pooling),
                kv_cache_retention=submit.kv_cache_retention,
            )
            key = RequestKey(client, submit.request)
            self._quarantine.admit(key, submit.num_losses)
            self._adapters.admit(key, adapter)
            # Only load reports count them, and drop those that have ended.
            if submit.num_losses and self._load_reporter.has_listeners:
                self._lost_requests.admit(key, submit)
            self._transfers.add(client, submit.request)
        except NeverFitsError as error:
            self._clients.post(client, Rejected(submit.request, "too_large", str(error)))
        except ValueError as error:
            parameter = error.parameter if isinstance(error, RequestError) else None
            self._clients.post(client, Rejected(submit.request, "invalid", str(error), parameter))

    def _call(self, client: int, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            value = self._calls.answer(client, method, args)
        except RequestError as error:
            self._clients.post(client, Reply(number, False, str(error)))
            return
        if not inspect.isawaitable(value):
            self._clients.post(client, Reply(number, True, value))
            return
        task = asyncio.ensure_future(self._answer_later(client, number, value))
        self._unanswered.add(task)
        task.add_done_callback(self._unanswered.discard)

    async def _answer_later(self, client: int, number: int, value: Awaitable[Any]) -> None:
        try:
            reply = Reply(number, True, await value)
        except RequestError as error:
            reply = Reply(number, False, str(error))
        except Exception as error:
            logger.exception("a client's call failed")
            reply = Reply(number, False, f"the engine failed: {error}")
        self._clients.post(client, reply)
