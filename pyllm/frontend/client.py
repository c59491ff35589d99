"""`EngineClient`: requests to one core, and their tokens back. Speaks token ids; knows neither text nor HTTP."""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from pyllm import ipc
from pyllm.child import HEARTBEAT_INTERVAL
from pyllm.curve import client_keys
from pyllm.errors import EngineDeadError, ProtocolError, PyllmError, RequestError, RequestTooLargeError
from pyllm.frontend.columns import decode_columns
from pyllm.frontend.embedding import Embedding, EmbeddingReader, EmbeddingReceiver, EmbeddingSink
from pyllm.frontend.journal import Journal
from pyllm.frontend.prompt_tokens import Prompt, pack_tokens
from pyllm.frontend.reports import Decision, KVEvents, SampleReport, TenantReport
from pyllm.frontend.streams import Sink, Stream, Streams
from pyllm.frontend.submission import prepare, prepare_embedding
from pyllm.frontend.token_reader import TokenDelta, TokenReader
from pyllm.messages import (
    PROTOCOL_VERSION,
    Abort,
    Call,
    ClientMessage,
    CoreMessage,
    Deltas,
    Heartbeat,
    Hello,
    ModelInfo,
    Ready,
    Rejected,
    Reply,
    Submit,
)
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams

# Seconds, but counted in our own heartbeats and not by the clock: a process that was stopped for a minute must not
# blame the core.
CORE_SILENCE = 10.0  # without a message from the core
READER_PATIENCE = 60.0  # in which a reader took nothing of what was there for it
CLOSE_LINGER = 1.0  # seconds that the last aborts get to leave

# What a refused request fails with, by the code; with any other code the request is at fault.
_REJECTIONS: dict[str, type[PyllmError]] = {
    "draining": EngineDeadError,
    "error": PyllmError,
    "too_large": RequestTooLargeError,
}

Connect = Callable[
    [ipc.MessageHandler[CoreMessage], ipc.MalformedHandler, Callable[[], None]], ipc.Sender[ClientMessage]
]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EngineClient:
    """A connection to one core. `await EngineClient.connect(address)` makes one over ZeroMQ.

    Through the constructor any transport can be used: `connect(on_message, on_malformed, on_disconnect)` gives the
    sending half; then `await client.start()`. `heartbeats=False` is for a core in the same process, which cannot be
    silent. All methods belong to the event loop's thread.
    """

    def __init__(
        self, connect: Connect, *, heartbeats: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.model: ModelInfo
        self.fingerprint = ""
        self.epoch = 0
        self.malformed_frames = 0
        self._connect = connect
        self._heartbeats = heartbeats
        self._clock = clock
        self._ids = itertools.count(1)
        self._streams = Streams()
        self._readers: dict[int, TokenReader] = {}
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._unsent: deque[ClientMessage] = deque()
        self._silent_ticks = 0
        self._death: PyllmError | None = None
        self._died = asyncio.Event()
        self._endpoint: ipc.Sender[ClientMessage] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109 - the handshake's deadline, named in its error
        keys: Path | None = None,
    ) -> "EngineClient":
        """Connect to the core that is bound, or will be bound, to a ZeroMQ address.

        `keys` is a folder with `server.key` and `client.key_secret`, for `tcp://`.

        Raises:
            EngineDeadError: no answer within `timeout` seconds.
            ProtocolError: the core speaks another version.
            ConfigError: a key cannot be read.
        """
        secrets = client_keys(keys) if keys is not None else None

        def connect(
            on_message: ipc.MessageHandler[CoreMessage],
            on_malformed: ipc.MalformedHandler,
            on_disconnect: Callable[[], None],
        ) -> ipc.Sender[ClientMessage]:
            socket = ipc.connect(zmq.Context.instance(), address, secrets)
            return ipc.Endpoint(socket, CoreMessage, on_message, on_malformed, on_disconnect)

        client = cls(connect)
        try:
            await client.start(timeout)
        except TimeoutError:
            raise EngineDeadError(f"no core answered at {address} within {timeout:g} s") from None
        return client

    async def start(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 - as in `connect`
        """Say hello and wait for the core to be ready.

        Raises:
            TimeoutError: no answer within `timeout` seconds.
            ProtocolError, EngineDeadError: as for `connect`.
        """
        self._ready = asyncio.get_running_loop().create_future()
        self._endpoint = self._connect(self._receive, self._malformed, self._disconnected)
        self._post(Hello(PROTOCOL_VERSION))
        try:
            async with asyncio.timeout(timeout):
                await self._ready
        except BaseException:
            self.close()
            raise
        if self._heartbeats:
            self._beating = asyncio.create_task(self._beat_forever(), name="pyllm-client-heartbeat")

    @property
    def alive(self) -> bool:
        """Whether requests can be submitted."""
        return self._ready is not None and self._ready.done() and self._death is None

    @property
    def num_requests(self) -> int:
        """Requests that have not ended yet."""
        return len(self._streams)

    def submit(
        self, prompt: Prompt, params: SamplingParams, sink: Sink, scheduling: SchedulingParams = DEFAULT_SCHEDULING
    ) -> int:
        """Start a request; its tokens are pushed to `sink`. Gives the id for `abort` and `explain`.

        `prompt` is token ids, or packed little-endian int32.

        Raises:
            RequestError, RequestTooLargeError: the request cannot run; nothing was sent.
            EngineDeadError: the core is gone.
        """
        self._check_alive()
        return self._start(prepare(prompt, params, self.model, scheduling), sink)

    def submit_embedding(
        self, prompt: Prompt, sink: EmbeddingSink, scheduling: SchedulingParams = DEFAULT_SCHEDULING
    ) -> int:
        """Ask for a prompt's embedding, which `sink` is handed; the prompt may fill the context. Else as `submit`."""
        self._check_alive()
        receiver = EmbeddingReceiver(sink)
        return self._start(prepare_embedding(prompt, self.model, scheduling), receiver, receiver.take)

    def abort(self, request: int, sample: int = -1) -> None:
        """End a request, or one sample of it; what has not finished yet gets a last delta. Unknown ids are ignored."""
        stream = self._streams.get(request)
        if stream is None:
            return
        for index in range(stream.journal.num_samples) if sample < 0 else (sample,):
            stream.journal.close(index)
        self._post(Abort(self.epoch, stream.wire_id, sample))

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

    async def embed(self, prompt: Prompt, scheduling: SchedulingParams = DEFAULT_SCHEDULING) -> Embedding:
        """A prompt's embedding: the last token's final hidden state, made of length 1. Cancelling this aborts it.

        Raises:
            DeadlineError: the `timeout` of `scheduling` passed.
            RequestError, RequestTooLargeError, EngineDeadError: as for `submit_embedding`, or later from the core.
        """
        reader = EmbeddingReader()
        request = self.submit_embedding(prompt, reader, scheduling)
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
            RequestError: the core refused; the text says why.
            TimeoutError: no answer within `timeout` seconds.
            EngineDeadError: the core is gone.
        """
        self._check_alive()
        number = next(self._ids)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        self._post(Call(self.epoch, number, method, args))
        try:
            async with asyncio.timeout(timeout):
                reply = await answer
        except TimeoutError:
            raise TimeoutError(f"the core did not answer {method!r} within {timeout:g} s") from None
        finally:
            del self._calls[number]
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
        stream = self._streams.get(request)
        if stream is None:
            raise RequestError(f"request {request} has ended, or is not of this client", "request")
        return await self._ask(list[SampleReport], "explain", stream.wire_id)

    async def decisions(self, limit: int = 100) -> list[Decision]:
        """What the last steps decided, oldest first; the core keeps the last 1,024."""
        return await self._ask(list[Decision], "decisions", limit)

    async def tenants(self) -> list[TenantReport]:
        """What each tenant has had under the policy `fair`; under others all are one, without a name."""
        return await self._ask(list[TenantReport], "tenants")

    async def reconfigure(self, **changes: Any) -> dict[str, Any]:
        """Change settings of the scheduler from the next step on; gives all that can change, as they are then.

        Names are those of the flags: `scheduling_policy`, `tenant_weights`, `watermark`, `max_num_batched_tokens`... If
        one of them is refused, all stay as they were.
        """
        return await self._ask(dict[str, Any], "reconfigure", changes)

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

    async def kv_events(self) -> KVEvents:
        """What the prefix cache has stored and evicted since the last call, whichever client made that.

        Refused unless the core was started with `--enable-kv-cache-events`. Many events take several calls.
        """
        return await self._ask(KVEvents, "kv_events")

    async def kv_snapshot(self) -> KVEvents:
        """All that the prefix cache knows now, for who begins to listen or has missed events."""
        return await self._ask(KVEvents, "kv_snapshot")

    async def death(self) -> PyllmError:
        """Wait until the connection has ended, by `close` too, and give the reason."""
        await self._died.wait()
        assert self._death is not None
        return self._death

    def close(self) -> None:
        """Abort what is running and disconnect; may be called more than once."""
        for stream in self._streams.all():
            self._post(Abort(self.epoch, stream.wire_id))
        self._disconnect(EngineDeadError("the engine client was closed"), CLOSE_LINGER)

    def give_up(self, error: PyllmError) -> None:
        """End everything with an error: the core will not come back."""
        self._disconnect(error)

    def beat(self) -> None:
        """Send a heartbeat; look for a silent core and for readers that do not read. Runs at 2 Hz by itself."""
        self._flush()
        if not self._unsent:
            self._post(Heartbeat("client"))
        self._silent_ticks += 1
        if self._silent_ticks * HEARTBEAT_INTERVAL > CORE_SILENCE:
            self._disconnect(EngineDeadError(f"the engine core gave no sign of life for {CORE_SILENCE:g} s"))
        for request, reader in list(self._readers.items()):
            idle = reader.tick() * HEARTBEAT_INTERVAL
            if idle > READER_PATIENCE and (stream := self._streams.get(request)) is not None:
                self.abort(request)
                self._streams.fail(stream, PyllmError(f"aborted: the output was not read for {READER_PATIENCE:g} s"))

    def _start(self, first: Submit, sink: Sink, on_embedding: Callable[[bytes], None] | None = None) -> int:
        now = self._clock()
        journal = Journal(first, now)
        request = next(self._ids)
        stream = Stream(request, journal, sink, on_embedding)
        self._streams.add(stream)  # Before it is sent: a core in this process may answer at once.
        try:
            self._post(journal.submission(self.epoch, request, now))
        except Exception:
            self._streams.forget(stream)
            raise
        return request

    async def _ask(self, kind: type[T], method: str, *args: Any) -> T:
        value = await self.call(method, *args)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            text = f"the core answered {method!r} with what this client cannot read: {error}; do their versions agree?"
            raise ProtocolError(text) from None

    async def _beat_forever(self) -> None:
        while self._death is None:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            self.beat()

    def _receive(self, identity: bytes, message: CoreMessage) -> None:
        del identity
        self._silent_ticks = 0
        match message:
            case Deltas(epoch) if epoch == self.epoch:
                self._route(message)
            case Reply(number):
                answer = self._calls.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case Ready():
                self._become_ready(message)
            case Rejected():
                self._be_rejected(message)
            case Deltas() | Heartbeat():
                pass

    def _route(self, deltas: Deltas) -> None:
        try:
            columns = decode_columns(deltas)
        except ValueError as error:
            self._malformed(b"", str(error))
            return
        incomplete, failed = self._streams.deliver(columns)
        for stream in failed:
            self._post(Abort(self.epoch, stream.wire_id))
        for stream in incomplete:
            logger.warning("tokens of request %d are missing; it is sent again", stream.request)
            self._resubmit(stream)

    def _become_ready(self, ready: Ready) -> None:
        assert self._ready is not None
        if ready.version != PROTOCOL_VERSION:
            text = f"the core speaks version {ready.version} of the protocol, this client {PROTOCOL_VERSION}"
            self._disconnect(ProtocolError(text))
            return
        self.model, self.fingerprint, self.epoch = ready.model, ready.fingerprint, ready.epoch
        if not self._ready.done():
            self._ready.set_result(None)
        else:
            for stream in self._streams.all():  # The core had forgotten us, and our requests with us.
                self._resubmit(stream)

    def _be_rejected(self, rejected: Rejected) -> None:
        if rejected.request is not None:
            stream = self._streams.get_by_wire_id(rejected.request)
            if stream is not None:
                kind = _REJECTIONS.get(rejected.code)
                error = RequestError(rejected.message, rejected.parameter) if kind is None else kind(rejected.message)
                self._streams.fail(stream, error)
        elif rejected.code == "hello":
            self._post(Hello(PROTOCOL_VERSION))
        elif rejected.code == "version":
            self._disconnect(ProtocolError(rejected.message))
        elif rejected.code == "engine_dead":
            self._disconnect(EngineDeadError(rejected.message))
        else:
            logger.error("the core refused a message (%s): %s", rejected.code, rejected.message)

    def _malformed(self, identity: bytes, text: str) -> None:
        del identity
        self.malformed_frames += 1
        logger.warning("a message from the core does not decode: %s", text)

    def _disconnected(self) -> None:
        text = "the connection to the engine core was lost"
        if self._ready is not None and not self._ready.done():
            text += " before it answered; over tcp:// it may want keys"
        self._disconnect(EngineDeadError(text))

    def _resubmit(self, stream: Stream) -> None:
        if self._streams.get(stream.request) is None:
            return  # The connection was lost while one before it was sent.
        old = stream.wire_id
        self._streams.rename(stream, next(self._ids))
        self._streams.end_closed_samples(stream)
        self._post(Abort(self.epoch, old))
        if self._streams.get(stream.request) is not None:
            self._post(stream.journal.submission(self.epoch, stream.wire_id, self._clock()))

    def _post(self, message: ClientMessage) -> None:
        if self._unsent or not self._send(message):
            self._unsent.append(message)

    def _flush(self) -> None:
        while self._unsent and self._send(self._unsent[0]):
            self._unsent.popleft()

    def _send(self, message: ClientMessage) -> bool:
        if self._endpoint is None:
            return True
        try:
            return self._endpoint.send(message)
        except ipc.PeerGoneError:
            self._disconnected()
            return True

    def _check_alive(self) -> None:
        if not self.alive:
            raise self._death or EngineDeadError("the engine client is not connected: await start() first")

    def _disconnect(self, death: PyllmError, linger: float = 0.0) -> None:
        """End every stream and call with an error. The socket goes at once: what it still holds is for this epoch."""
        if self._endpoint is None:
            return
        endpoint, self._endpoint = self._endpoint, None
        self._death = death
        self._died.set()
        self._unsent.clear()
        endpoint.close(linger)
        if self._beating is not None:
            self._beating.cancel()
        for answer in (self._ready, *self._calls.values()):
            if answer is not None and not answer.done():
                answer.set_exception(death)
        for stream in self._streams.all():
            self._streams.fail(stream, death)
