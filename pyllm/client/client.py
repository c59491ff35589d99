"""`EngineClient`: sends requests to a core and yields their tokens, also when another core takes over.

Speaks token ids; knows neither text nor HTTP.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pyllm.client.core_connection import Condition, ConnectionCounts, CoreConnection, Handlers, over_zeromq
from pyllm.client.embedding import Embedding, EmbeddingReader, EmbeddingReceiver, EmbeddingSink
from pyllm.client.pending_calls import Calls
from pyllm.client.prompt_tokens import Prompt, pack_tokens
from pyllm.client.reports import BlockOwners, Decision, KVEvents, RequestReport, SampleReport, TenantReport
from pyllm.client.running_requests import RunningRequests
from pyllm.client.streams import OutputSink
from pyllm.client.submission import prepare, prepare_embedding, random_seed
from pyllm.client.token_reader import TokenDelta, TokenReader
from pyllm.errors import EngineDeadError, ProfileRunningError, ProtocolError, PyllmError, RequestError
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams
from pyllm.wire.curve import client_keys
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.link import Connect
from pyllm.wire.messages import Call, ClientMessage, CoreMessage, Deltas, Isolated, ModelInfo, Rejected, Reply
from pyllm.wire.profiles import ProfileOutcome

READER_PATIENCE = 60.0  # seconds in which a reader took nothing of what was there for it
RECOVERY_TIMEOUT = 600.0  # seconds that requests wait for the next core
PROFILE_GRACE = 60.0  # seconds that ranks have beside those of a profile, to begin and to add up
CLOSE_LINGER = 1.0  # seconds that the last aborts get to leave

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EngineClient:
    """Requests to a core, which outlive it: `await EngineClient.connect(address)` makes one over ZeroMQ.

    What runs when a core is lost is sent to the next one, with what it was given so far, and goes on as it would have;
    what is asked for meanwhile is sent then, too.

    Through the constructor any transport can be used: `connects` has one function for each place where a core may be,
    and each call of `connect(on_message, on_malformed, on_disconnect)` gives the sending half of a fresh connection;
    then `await client.start()`. `heartbeats=False` is for a core in the same process, which cannot be silent. With
    `awaits_first` a core that is lost before it has answered is no error, but followed by another. All methods belong
    to the event loop's thread.
    """

    def __init__(
        self,
        *connects: Connect[CoreMessage, ClientMessage],
        heartbeats: bool = True,
        clock: Callable[[], float] = time.monotonic,
        recovery_timeout: float = RECOVERY_TIMEOUT,
        awaits_first: bool = False,
    ) -> None:
        self.malformed_frames = 0
        self.draw_seed: Callable[[], int] = random_seed  # of requests that have none
        self._heartbeats = heartbeats
        self._ids = itertools.count(1)
        self._readers: dict[int, TokenReader] = {}
        self._calls = Calls()
        self._death: PyllmError | None = None
        self._died = asyncio.Event()
        self._ready: asyncio.Future[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        handlers = Handlers(
            self._become_ready, self._receive, self._malformed, self._calls.fail_all, self._lose_core, self.give_up
        )
        self._connection = CoreConnection(handlers, connects, recovery_timeout, awaits_first)
        self._requests = RunningRequests(self._connection, self._ids, clock)

    @classmethod
    async def connect(
        cls,
        address: str | Sequence[str],
        *,
        timeout: float = 60.0,  # noqa: ASYNC109 - the handshake's deadline, named in its error
        keys: Path | None = None,
        recovery_timeout: float = RECOVERY_TIMEOUT,
    ) -> "EngineClient":
        """Connect to the core that is bound, or will be bound, to a ZeroMQ address, or to one of several.

        `keys` is a folder with `server.key` and `client.key_secret`, for `tcp://`. When the core is lost, requests wait
        for `recovery_timeout` seconds for another one, at whichever address.

        Raises:
            EngineDeadError: no answer within `timeout` seconds.
            ProtocolError: the core speaks another version.
            ConfigError: a key cannot be read.
        """
        secrets = client_keys(keys) if keys is not None else None
        addresses = [address] if isinstance(address, str) else list(address)
        client = cls(
            *(over_zeromq(each, secrets) for each in addresses),
            recovery_timeout=recovery_timeout,
            awaits_first=all(each.startswith("ipc://") for each in addresses),  # Where no keys can be wrong.
        )
        try:
            await client.start(timeout)
        except TimeoutError:
            raise EngineDeadError(f"no core answered at {' or '.join(addresses)} within {timeout:g} s") from None
        return client

    async def start(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 - as in `connect`
        """Say hello and wait for the core to be ready.

        Raises:
            TimeoutError: no answer within `timeout` seconds.
            ProtocolError, EngineDeadError: as for `connect`.
        """
        self._ready = asyncio.get_running_loop().create_future()
        self._connection.open()
        if self._heartbeats:
            self._beating = asyncio.create_task(self._beat_forever(), name="pyllm-client-heartbeat")
        try:
            async with asyncio.timeout(timeout):
                await self._ready
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether requests can be submitted; they wait where there is no core for the moment."""
        return self._ready is not None and self._ready.done() and self._death is None

    @property
    def model(self) -> ModelInfo:
        """What the core said of its model."""
        return self._connection.model

    @property
    def fingerprint(self) -> str:
        """The core's, see `Ready`; those of two cores that give the same tokens are the same."""
        return self._connection.fingerprint

    @property
    def epoch(self) -> int:
        """The run of a core that this is, or was last, connected to."""
        return self._connection.epoch

    @property
    def counts(self) -> ConnectionCounts:
        """Cores that were met so far, and requests that were sent again."""
        return self._connection.counts

    def condition(self) -> Condition:
        """Whether requests are worked on, and why not."""
        if self._death is not None:
            return Condition(False, reason=str(self._death))
        return self._connection.condition()

    @property
    def num_requests(self) -> int:
        """Requests that have not ended yet."""
        return len(self._requests)

    def draw_seeds_from(self, seed: int | None, index: int = 0) -> None:
        """Draw the seeds of requests that have none from this one: the same requests in the same order get the same.

        `index` tells apart clients of one engine. None draws at random, as a new client does.
        """
        # Uniforms of the plan come from the seed by a hash; this is only to have another seed for each request.
        generator = None if seed is None else random.Random(f"{seed}/{index}")  # noqa: S311  it keeps no secret
        self.draw_seed = random_seed if generator is None else partial(generator.getrandbits, 63)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        sink: OutputSink[TokenDelta],
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> int:
        """Start a request; its tokens are pushed to `sink`. Gives the id for `abort` and `explain`.

        `prompt` is token ids, or packed little-endian int32. Without a core it waits for the next one.

        Raises:
            RequestError, RequestTooLargeError: the request cannot run; nothing was sent.
            EngineDeadError: the core is gone, and no other one is waited for.
        """
        self._check_alive()
        return self._requests.start(prepare(prompt, params, self.model, scheduling, self.draw_seed), sink)

    def submit_embedding(
        self,
        prompt: Prompt,
        sink: EmbeddingSink,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        dimensions: int | None = None,
    ) -> int:
        """Ask for a prompt's embedding, which `sink` is handed; the prompt may fill the context. Else as `submit`.

        `dimensions` cuts it, of a model that was trained for this (`ModelInfo.is_matryoshka`).
        """
        self._check_alive()
        receiver = EmbeddingReceiver(sink, dimensions)
        submit = prepare_embedding(prompt, self.model, scheduling, dimensions)
        return self._requests.start(submit, receiver, receiver.take)

    def abort(self, request: int, sample: int = -1) -> None:
        """End a request, or one sample of it; what has not finished yet gets a last delta. Unknown ids are ignored."""
        self._requests.abort(request, sample)

    async def generate(
        self, prompt: Prompt, params: SamplingParams, scheduling: SchedulingParams = DEFAULT_SCHEDULING
    ) -> AsyncGenerator[TokenDelta, None]:
        """The request's deltas. Leaving the iterator early aborts the request; so does not reading it for 60 s.

        Raises:
            RequestError, RequestTooLargeError, EngineDeadError: as for `submit`, or later from the core.
        """
        reader = TokenReader(params.n)
        request = self.submit(prompt, params, reader, scheduling)
        self._readers[request] = reader
        try:
            while (delta := await reader.read()) is not None:
                yield delta
        finally:
            del self._readers[request]
            if not reader.finished:
                self.abort(request)

    async def embed(
        self, prompt: Prompt, scheduling: SchedulingParams = DEFAULT_SCHEDULING, dimensions: int | None = None
    ) -> Embedding:
        """A prompt's embedding, as `ModelInfo.pooling` says, made of length 1. Cancelling this aborts it.

        Raises:
            DeadlineError: the `timeout` of `scheduling` passed.
            RequestError, RequestTooLargeError, EngineDeadError: as for `submit_embedding`, or later from the core.
        """
        reader = EmbeddingReader()
        request = self.submit_embedding(prompt, reader, scheduling, dimensions)
        try:
            return await reader.result
        finally:
            self.abort(request)  # Which does nothing once it has ended.

    async def call(
        self,
        method: str,
        *args: Any,
        timeout: float = 10.0,  # noqa: ASYNC109 - every call on the wire has a deadline
    ) -> Any:
        """Ask the core for something outside the stream, by name; what follows below is that with types.

        Raises:
            RequestError: the core refused, or an argument cannot be sent; the text says why.
            TimeoutError: no answer within `timeout` seconds.
            EngineDeadError: the core is gone; it is not asked again when there is another one.
        """
        self._check_alive()
        if not self._connection.is_ready:
            raise EngineDeadError(self._connection.condition().reason)
        number = next(self._ids)
        answer = self._calls.open(number)
        try:
            self._connection.post(Call(self.epoch, number, method, args))
            async with asyncio.timeout(timeout):
                reply = await answer
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"the arguments of the call {method} cannot be sent: {error}") from None
        except TimeoutError:
            raise TimeoutError(f"the core did not answer {method!r} within {timeout:g} s") from None
        finally:
            self._calls.close(number)
        if not reply.ok:
            raise RequestError(str(reply.value))
        return reply.value

    async def stats(self) -> dict[str, int]:
        """The scheduler's gauges and counters, and the core's. It and the calls below raise as `call` does."""
        return await self._ask(dict[str, int], "stats")

    async def explain(self, request: int) -> list[SampleReport]:
        """Where each sample of a request stands, and why it is not further.

        Raises:
            RequestError: the request has ended; else as `call`.
        """
        wire_id = self._requests.wire_id(request)
        if wire_id is None:
            raise RequestError(f"request {request} has ended, or is not of this client", "request")
        return await self._ask(list[SampleReport], "explain", wire_id)

    async def requests(self, limit: int = 2000, name: str | None = None) -> list[RequestReport]:
        """All clients' requests: those that live, in the order in which they came, then the last 1,000 that have ended,
        latest first, also those that ended in a core before this one. At most `limit`, and 2,000; with a `name` only
        those that have it (`SchedulingParams.name`).
        """
        return await self._ask(list[RequestReport], "requests", limit, name)

    async def block_owners(self) -> BlockOwners:
        """The blocks of the device by owner."""
        return await self._ask(BlockOwners, "block_owners")

    async def decisions(self, limit: int = 100) -> list[Decision]:
        """What the last steps decided, oldest first; the core keeps the last 1,024."""
        return await self._ask(list[Decision], "decisions", limit)

    async def tenants(self) -> list[TenantReport]:
        """What each tenant has had under the policy `fair`; under others all are one, without a name."""
        return await self._ask(list[TenantReport], "tenants")

    async def reconfigure(self, **changes: Any) -> dict[str, Any]:
        """Change settings of the scheduler from the next step on; gives all that can change, as they are then.

        Names are those of the flags: `scheduling_policy`, `tenant_weights`, `watermark`, `max_num_batched_tokens`...,
        and `log_level`, unless the core runs in this process. If one of them is refused, all stay as they were. A core
        that takes the place of a dead one has what was changed.
        """
        return await self._ask(dict[str, Any], "reconfigure", changes)

    async def profile(
        self,
        num_steps: int = 20,
        seconds: float = 30.0,
        *,
        with_trace: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> ProfileOutcome:
        """Record the next steps on `ranks`, or all; after some seconds it ends with those that have come, maybe none.

        At most 100 steps and 60 seconds.

        Raises:
            ProfileRunningError: one runs already, of this client or another.
            EngineDeadError: there is no core, or it or its workers died meanwhile; the next profile is of others.
            RequestError: a number is out of its range.
        """
        try:
            value = await self.call("profile", num_steps, seconds, with_trace, ranks, timeout=seconds + PROFILE_GRACE)
        except (EngineDeadError, TimeoutError) as error:
            raise EngineDeadError(f"there is no profile: {error}") from None
        outcome = _converted(value, ProfileOutcome, "profile")
        if outcome.ended_by == "running":
            raise ProfileRunningError(outcome.reason)
        if outcome.ended_by == "interrupted":
            text = f"the profile was interrupted after {outcome.seconds:.1f} s"
            raise EngineDeadError(f"{text}: {outcome.reason}; ask for another one when the engine is ready")
        return outcome

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, on the device and the host; what runs keeps its blocks."""
        await self.call("reset_prefix_cache")

    async def pin(self, name: int, prompt: Prompt, *, tenant: str = "", cache_salt: str = "", adapter: str = "") -> int:
        """Keep the full blocks of a prefix from eviction, now and once they are computed; gives their number.

        `name` is the caller's to choose, for `unpin`; the prefix is found by requests that have the other three equal.
        """
        tokens = pack_tokens(prompt).tobytes()
        return await self._ask(int, "pin", name, tokens, tenant, cache_salt, adapter)

    async def unpin(self, name: int) -> bool:
        """Let a pinned prefix be evicted. False: there is no such pin."""
        return await self._ask(bool, "unpin", name)

    async def kv_events(self, first: int = 0, *, tokens: bool = True) -> KVEvents:
        """What the prefix cache has stored and evicted, from the event of number `first` on; 10,000 events a call.

        Any number of clients may ask. Without `tokens`, events name blocks by their hashes alone. Refused unless the
        core was started with `--enable-kv-cache-events`.
        """
        return await self._ask(KVEvents, "kv_events", first, tokens)

    async def kv_snapshot(self, *, tokens: bool = True) -> KVEvents:
        """All that the prefix cache knows now, for who begins to listen or has missed events."""
        return await self._ask(KVEvents, "kv_snapshot", tokens)

    async def death(self) -> PyllmError:
        """Wait until no core is waited for longer, by `close`, `give_up` or the recovery timeout; gives the reason."""
        await self._died.wait()
        assert self._death is not None
        return self._death

    def give_up(self, error: PyllmError) -> None:
        """Disconnect, and end every request and call with this error: no core will come."""
        self._end(error)

    def close(self) -> None:
        """Abort what is running and disconnect; may be called more than once."""
        self._requests.abort_all()
        self._end(EngineDeadError("the engine client was closed"), CLOSE_LINGER)

    def beat(self) -> None:
        """Let half a second pass: for the core, for readers that do not read, and for what waits without a core.

        Runs by itself, at 2 Hz.
        """
        self._connection.beat()
        self._requests.beat()
        for request, reader in list(self._readers.items()):
            if reader.tick() * HEARTBEAT_INTERVAL > READER_PATIENCE:
                self._requests.fail(request, PyllmError(f"aborted: the output was not read for {READER_PATIENCE:g} s"))

    async def _ask(self, kind: type[T], method: str, *args: Any) -> T:
        return _converted(await self.call(method, *args), kind, method)

    async def _beat_forever(self) -> None:
        while self._death is None:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            self.beat()

    def _receive(self, message: Deltas | Reply | Rejected | Isolated) -> None:
        match message:
            case Deltas():
                try:
                    self._requests.deliver(message)
                except ValueError as error:
                    self._malformed(str(error))
            case Reply():
                self._calls.settle(message)
            case Rejected(None, "engine_dead", text):
                # It has had its time to finish them, and says that they end; only what comes later goes elsewhere.
                self._fail_all(EngineDeadError(text))
            case Rejected(None):
                logger.error("the core refused a message (%s): %s", message.code, message.message)
            case Rejected():
                self._requests.reject(message)
            case Isolated():
                self._requests.isolate(message)

    def _become_ready(self, previous_fingerprint: str, is_known: bool) -> None:
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_result(None)
        self._requests.resubmit_all(previous_fingerprint in ("", self.fingerprint), is_known)

    def _lose_core(self, loss: EngineDeadError) -> None:
        self._requests.lose_core(loss)

    def _malformed(self, text: str) -> None:
        self.malformed_frames += 1
        logger.warning("a message from the core does not decode: %s", text)

    def _check_alive(self) -> None:
        if not self.alive:
            raise self._death or EngineDeadError("the engine client is not connected: await start() first")

    def _end(self, death: PyllmError, linger: float = 0.0) -> None:
        """End every stream and call with an error, for good."""
        if self._death is not None:
            return
        self._death = death
        self._died.set()
        self._connection.close(linger)
        if self._beating is not None:
            self._beating.cancel()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(death)
        self._fail_all(death)

    def _fail_all(self, error: PyllmError) -> None:
        self._calls.fail_all(error)
        self._requests.fail_all(error)


def _converted(value: Any, kind: type[T], method: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = f"the core answered {method!r} with what this client cannot read: {error}; do their versions agree?"
        raise ProtocolError(text) from None
