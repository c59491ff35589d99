"""`EngineClient`: sends requests to one core or several and yields their tokens, also when a core is lost.

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

from pyllm.arguments import shown
from pyllm.client.core_calls import CoreCalls
from pyllm.client.core_connection import ATTEMPT, Condition, ConnectionCounts, CoreConnect, over_zeromq
from pyllm.client.core_connections import CLOSE_LINGER, ConnectionLimits, CoreConnections
from pyllm.client.cores import Core, CoreReport, Cores
from pyllm.client.embedding import Embedding, EmbeddingReader, EmbeddingReceiver, EmbeddingSink
from pyllm.client.pending_calls import Calls, Done
from pyllm.client.placers import PlacementKind, PrefixPlacer, RoundRobin
from pyllm.client.prompt_tokens import Prompt
from pyllm.client.reports import SampleReport
from pyllm.client.running_requests import RunningRequests
from pyllm.client.streams import OutputSink, PromptSink
from pyllm.client.submission import prepare, prepare_embedding, random_seed, refuse_text_parameters
from pyllm.client.token_reader import TokenDelta, TokenReader
from pyllm.config.engine_settings import MAX_CORES
from pyllm.errors import ConfigError, EngineDeadError, PyllmError, RequestError
from pyllm.owning_process import OwningProcess
from pyllm.recording import check_recording_path
from pyllm.sampling_params import SamplingParams
from pyllm.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams
from pyllm.wire.curve import client_keys
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import Deltas, Isolated, LoadReport, ModelInfo, Rejected, Reply

READER_PATIENCE = 60.0  # seconds in which a reader took nothing of what was there for it
RECOVERY_TIMEOUT = 600.0  # seconds that requests wait for the next core

logger = logging.getLogger(__name__)


class EngineClient(CoreCalls):
    """Sends requests to cores and survives their loss: `await EngineClient.connect(addresses)` makes one over ZeroMQ.

    When a core is lost, its running requests continue on another one with the tokens that they have. Without a core,
    requests wait for the next.

    Through the constructor any transport can be used: `connects` has one function for each place where a core may be,
    and each call of `connect(on_message, on_malformed, on_disconnect)` gives the sending half of a fresh connection;
    then `await client.start()`. `placement` is as for `connect`, `addresses` names the places, and `indices` numbers
    them, unless they are 0, 1, 2... `heartbeats=False` is for a core in the same process, which cannot be silent. With
    `awaits_first` a core that is lost before it has answered is no error, but followed by another. All methods belong
    to the event loop's thread.
    """

    def __init__(
        self,
        *connects: CoreConnect,
        placement: PlacementKind = "failover",
        addresses: Sequence[str] = (),
        indices: Sequence[int] | None = None,
        heartbeats: bool = True,
        clock: Callable[[], float] = time.monotonic,
        recovery_timeout: float = RECOVERY_TIMEOUT,
        awaits_first: bool = False,
        placement_recording: Path | None = None,
        transport: Callable[[str], CoreConnect] = lambda address: over_zeromq(address, None),
    ) -> None:
        one_at_a_time = placement == "failover"
        if len(connects) > MAX_CORES and not one_at_a_time:
            text = f"{len(connects)} addresses: a client has at most {MAX_CORES} cores"
            raise ConfigError(f"{text}; give fewer, or run several clients")
        if placement_recording is not None:
            check_recording_path(placement_recording)
        self.malformed_frames = 0
        self.draw_seed: Callable[[], int] = random_seed  # of requests that have none
        self._placement = placement
        self._transport = transport
        self._heartbeats = heartbeats
        self._readers: dict[int, TokenReader] = {}
        self._death: PyllmError | None = None
        self._died = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._owner = OwningProcess("EngineClient")
        ids, calls = itertools.count(1), Calls()
        self._cores = Cores(
            lambda model: PrefixPlacer(model, placement_recording) if placement == "prefix" else RoundRobin(), clock
        )
        super().__init__(self._cores, calls, ids, self._check_alive)
        self._requests = RunningRequests(self._cores, ids, clock)
        self._connections = CoreConnections(
            self._cores,
            self._requests,
            calls,
            ConnectionLimits(one_at_a_time, recovery_timeout, awaits_first),
            on_message=self._receive,
            on_malformed=self._malformed,
            on_end=self._end,
        )
        names = [*addresses, *("" for _ in connects[len(addresses) :])]
        if one_at_a_time:
            self._connections.add(" or ".join(names), connects)
        else:
            numbers = range(len(names)) if indices is None else indices
            for name, connect, index in zip(names, connects, numbers, strict=True):
                self._connections.add(name, [connect], index)

    @classmethod
    async def connect(
        cls,
        address: str | Sequence[str],
        *,
        placement: PlacementKind = "failover",
        timeout: float = 60.0,  # noqa: ASYNC109 - the handshake's deadline, named in its error
        keys: Path | None = None,
        recovery_timeout: float = RECOVERY_TIMEOUT,
        placement_recording: Path | None = None,
    ) -> "EngineClient":
        """Connect to the core that is bound, or will be bound, to a ZeroMQ address, or to those at several.

        `placement` says what becomes of requests. "failover": all go to one core, and to the next address once that is
        lost. "prefix": each goes to the core that is expected to be done with it first, given what it has to do and has
        cached of the prompt. "round-robin": to each core in turn. Where there are several, they must give the same
        tokens; one is enough to begin.

        `keys` is a folder with `server.key` and `client.key_secret`, for `tcp://`. When the core is lost, requests wait
        for `recovery_timeout` seconds for another one, at whichever address. With placement "prefix" all that decides
        where requests go is written to the file `placement_recording`, for `pyllm replay`.

        Raises:
            EngineDeadError: no answer within `timeout` seconds.
            ProtocolError: the core speaks another version.
            ConfigError: an address is none of a core, a key cannot be read, the recording not be made, or there are
                more than 64 addresses.
        """
        addresses = [address] if isinstance(address, str) else list(address or ())
        if not addresses or not all(isinstance(each, str) for each in addresses):
            text = "or several in a list; such as ipc:///run/core or tcp://10.0.0.1:5555"
            raise ConfigError(f"connect needs the address of a core, {text}, got {shown(address)}")
        secrets = client_keys(keys) if keys is not None else None
        client = cls(
            *(over_zeromq(each, secrets) for each in addresses),
            placement=placement,
            addresses=addresses,
            recovery_timeout=recovery_timeout,
            placement_recording=placement_recording,
            awaits_first=all(each.startswith("ipc://") for each in addresses),  # Where no keys can be wrong.
            transport=lambda address: over_zeromq(address, secrets),
        )
        try:
            await client.start(timeout)
        except TimeoutError:
            raise EngineDeadError(f"no core answered at {' or '.join(addresses)} within {timeout:g} s") from None
        return client

    async def start(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 - as in `connect`
        """Say hello and wait for a core to be ready, and for the others a little longer.

        Raises:
            TimeoutError: no answer within `timeout` seconds.
            ProtocolError, EngineDeadError: as for `connect`.
        """
        self._connections.open()
        if self._heartbeats:
            self._beating = asyncio.create_task(self._beat_forever(), name="pyllm-client-heartbeat")
        try:
            async with asyncio.timeout(timeout):
                await self._connections.first_ready(lambda: self._death is not None)
            if self._death is not None:
                raise self._death
        except BaseException:
            self.close()
            raise
        await self._connections.all_settled(ATTEMPT)

    @property
    def alive(self) -> bool:
        """Whether requests can be submitted; they wait where there is no core for the moment."""
        return self._connections.was_ready and self._death is None

    @property
    def model(self) -> ModelInfo:
        """What the core said of its model."""
        return self._cores.model

    @property
    def fingerprint(self) -> str:
        """The core's, see `Ready`; those of two cores that give the same tokens are the same."""
        return self._cores.fingerprint

    @property
    def epoch(self) -> int:
        """The run of a core that this is, or was last, connected to; of several, of the first that is ready."""
        return self._cores.any_ready.connection.epoch

    @property
    def counts(self) -> ConnectionCounts:
        """Cores that were met so far, and requests that were sent again."""
        return self._cores.counts

    @property
    def cores(self) -> tuple[CoreReport, ...]:
        """The cores, or with "failover" the one that there is, as this client sees them."""
        return tuple(core.report() for core in self._cores.all())

    def condition(self) -> Condition:
        """Whether requests are worked on, and why not."""
        if self._death is not None:
            return Condition(False, reason=str(self._death))
        return self._cores.condition()

    async def add_core(
        self,
        address: str,
        timeout: float = 60.0,  # noqa: ASYNC109 - as in `connect`
        *,
        index: int | None = None,
    ) -> int:
        """Take requests to another core, too; gives its index. New requests go there from now on.

        Clients that must agree on indices choose one that was not used before.

        Raises:
            RequestError: requests go to one core at a time, or this address or index is there already.
            EngineDeadError: no answer within `timeout` seconds, or it would give other tokens.
            ConfigError: it is no address of a core.
        """
        self._check_alive()
        if self._placement == "failover":
            text = "this client sends all to one core at a time"
            raise RequestError(f"{text}: connect it with placement 'prefix' or 'round-robin' to add cores", "address")
        return await self._connections.join(address, self._transport(address), timeout, index)

    def require_fingerprint(self, fingerprint: str) -> None:
        """Use only cores of this fingerprint from now on, also while there is no other one; empty: any."""
        self._connections.require_fingerprint(fingerprint)

    async def remove_core(self, index: int, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - what runs has so long
        """Send nothing more to a core, and leave it once what it has from this client has ended.

        What has not ended after `timeout` seconds goes on on the others.

        Raises:
            RequestError: there is no such core, or no other one.
        """
        await self._connections.leave(self._core(index), timeout)

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

        `prompt` is token ids, or packed little-endian int32. Without a core it waits for the next one. Parameters that
        need a tokenizer, such as `stop`, are refused by name.

        Raises:
            RequestError, RequestTooLargeError: the request cannot run; nothing was sent.
            EngineDeadError: the core is gone, and no other one is waited for.
        """
        refuse_text_parameters(params)
        return self.submit_for_text(prompt, params, sink, scheduling)

    def submit_for_text(
        self,
        prompt: Prompt,
        params: SamplingParams,
        sink: OutputSink[TokenDelta],
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> int:
        """`submit` for a caller with a tokenizer, who sees to the parameters that need one."""
        self._check_alive()
        submit = prepare(prompt, params, self.model, scheduling, self.draw_seed)
        if params.max_tokens == 0:
            sink = PromptSink(sink)
        wanted = self._wanted_core(scheduling)
        return self._requests.start(submit, sink, session=scheduling.session, wanted_core=wanted)

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
        wanted = self._wanted_core(scheduling)
        return self._requests.start(submit, receiver, receiver.take, scheduling.session, wanted)

    def abort(self, request: int, sample: int = -1) -> Done:
        """End a request, or one sample of it; what has not finished yet gets a last delta. Unknown ids are ignored.

        It is done when this returns, and may be awaited.
        """
        self._requests.abort(request, sample)
        return Done()

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

    async def explain(self, request: int) -> list[SampleReport]:
        """Where each sample of a request stands, and why it is not further.

        Raises:
            RequestError: the request has ended; else as `call`.
        """
        place = self._requests.locate(request)
        if place is None:
            raise RequestError(f"request {request} has ended, or is not of this client", "request")
        core, wire_id = place
        if core is None:
            raise EngineDeadError(self._cores.any_ready.connection.condition().reason)
        return await self._ask(list[SampleReport], "explain", wire_id, core=core.index)

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
        self._connections.beat()
        self._cores.beat()
        self._requests.beat()
        for request, reader in list(self._readers.items()):
            if reader.tick() * HEARTBEAT_INTERVAL > READER_PATIENCE:
                self._requests.fail(request, PyllmError(f"aborted: the output was not read for {READER_PATIENCE:g} s"))

    async def _beat_forever(self) -> None:
        while self._death is None:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            self.beat()

    def _receive(self, core: Core, message: Deltas | Reply | Rejected | Isolated | LoadReport) -> None:
        match message:
            case Deltas():
                try:
                    self._requests.deliver(message)
                except ValueError as error:
                    self._malformed(str(error))
            case LoadReport():
                try:
                    self._requests.take_report(core, message)
                except ValueError as error:
                    self._malformed(str(error))
            case Reply():
                self._calls.settle(message)
            case Rejected(None, "engine_dead", text) if len(self._cores) == 1:
                # It has had its time to finish them, and says that they end; only what comes later goes elsewhere.
                self._fail_all(EngineDeadError(text))
            case Rejected(None, "engine_dead"):
                self._requests.leave(core)
                self._requests.place_waiting()
            case Rejected(None):
                logger.error("the core refused a message (%s): %s", message.code, message.message)
            case Rejected():
                self._requests.reject(message)
            case Isolated():
                self._requests.isolate(message)

    def _malformed(self, text: str) -> None:
        self.malformed_frames += 1
        logger.warning("a message from the core does not decode: %s", text)

    def _wanted_core(self, scheduling: SchedulingParams) -> int | None:
        """The core that a request asks for; with "failover" there is one, of index 0.

        Raises:
            RequestError: there is none of this index.
        """
        wanted = scheduling.data_parallel_rank
        return None if wanted is None else self._core(wanted, "data_parallel_rank").index

    def _check_alive(self) -> None:
        self._owner.check()
        if not self.alive:
            raise self._death or EngineDeadError("the engine client is not connected: await start() first")

    def _end(self, death: PyllmError, linger: float = 0.0) -> None:
        """End every stream and call with an error, for good."""
        if self._death is not None:
            return
        self._death = death
        self._died.set()
        self._connections.close(linger)
        self._cores.close()
        if self._beating is not None:
            self._beating.cancel()
        self._fail_all(death)

    def _fail_all(self, error: PyllmError) -> None:
        self._calls.fail_all(error)
        self._requests.fail_all(error)
