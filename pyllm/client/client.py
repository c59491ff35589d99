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

import msgspec

from pyllm.client.core_calls import CoreCalls
from pyllm.client.core_connection import ATTEMPT, Condition, ConnectionCounts, CoreConnect, EpochMessage, over_zeromq
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
from pyllm.parameters.arguments import shown
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams
from pyllm.recording import check_recording_path
from pyllm.wire.curve import client_keys
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import AdapterList, Deltas, Isolated, LoadReport, ModelInfo, Rejected, Reply, WeightsChanged

READER_PATIENCE = 60.0  # seconds without a read of pending output, after which a request is aborted
RECOVERY_TIMEOUT = 600.0  # seconds that requests wait for another core

logger = logging.getLogger(__name__)


class EngineClient(CoreCalls):
    """Sends requests to cores and survives their loss: `await EngineClient.connect(addresses)` makes one over ZeroMQ.

    When a core is lost, its running requests continue on another one after the tokens that they have. While no core is
    ready, requests wait for the next one.

    The constructor takes any transport: `connects` has one function for each address where a core may be, and each call
    of `connect(on_message, on_malformed, on_disconnect)` returns the sending half of a fresh connection; then
    `await client.start()`. `placement` is as for `connect`, `addresses` names the addresses, and `indices` numbers them
    (default: 0, 1, 2...). `heartbeats=False` is for a core in the same process, which cannot be silent. With
    `awaits_first`, losing a core before it has answered is not an error: the client waits for another. Call all
    methods from the event loop's thread.
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
        self.draw_seed: Callable[[], int] = random_seed  # for requests without a seed
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
        self._requests = RunningRequests(self._cores, ids, clock)
        super().__init__(
            self._cores,
            calls,
            ids,
            self._check_alive,
            on_adapters=self._requests.place_waiting,
            has_waiting=self._requests.has_waiting,
        )
        self._connections = CoreConnections(
            self._cores,
            self._requests,
            calls,
            ConnectionLimits(one_at_a_time, recovery_timeout, awaits_first),
            on_ready=self._adapter_lists.begin,
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
        """Connect to the core that is bound, or will be bound, to a ZeroMQ address, or to the cores at several.

        `placement` chooses a core for each request. "failover": all go to one core, and to the next address once it is
        lost. "prefix": each goes to the core that is expected to finish it first, by the core's load and the tokens in
        its prefix cache. "round-robin": to each core in turn. Several cores must give the same tokens; one is enough to
        begin.

        `keys` is a folder with `server.key` and `client.key_secret`, for `tcp://`. When the core is lost, requests wait
        `recovery_timeout` seconds for another one, at any of the addresses. With placement "prefix" the inputs of all
        placement decisions are written to the file `placement_recording`, for `pyllm replay`.

        Raises:
            EngineDeadError: no answer within `timeout` seconds.
            ProtocolError: the core speaks another version.
            ConfigError: an address is not valid for a core, a key cannot be read, the recording cannot be made, or
                there are more than 64 addresses.
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
            awaits_first=all(each.startswith("ipc://") for each in addresses),  # without keys, none can be wrong
            transport=lambda address: over_zeromq(address, secrets),
        )
        try:
            await client.start(timeout)
        except TimeoutError:
            raise EngineDeadError(f"no core answered at {' or '.join(addresses)} within {timeout:g} s") from None
        return client

    async def start(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 - as in `connect`
        """Say hello, wait until a core is ready, then at most 2.5 seconds for the others.

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
        """Whether requests can be submitted; they wait while no core is ready."""
        return self._connections.was_ready and self._death is None

    @property
    def model(self) -> ModelInfo:
        """The core's model and its limits."""
        return self._cores.model

    @property
    def fingerprint(self) -> str:
        """The core's fingerprint, see `Ready`: two cores with the same one give the same tokens."""
        return self._cores.fingerprint

    @property
    def base_fingerprint(self) -> str:
        """`fingerprint` with the weights that the core was started with; it stays when weights change."""
        return self._cores.base_fingerprint

    @property
    def epoch(self) -> int:
        """The epoch (one run of a core) of the current or last connection; of several cores, of the first ready one."""
        return self._cores.any_ready.connection.epoch

    @property
    def counts(self) -> ConnectionCounts:
        """Counts of core connections and of resubmitted requests so far."""
        return self._cores.counts

    @property
    def cores(self) -> tuple[CoreReport, ...]:
        """Reports on the cores, as this client sees them; with "failover" on the single one."""
        return tuple(core.report() for core in self._cores.all())

    def condition(self) -> Condition:
        """Whether a core is serving requests, and if not, why."""
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
        """Add a core and return its index. New requests may go there from now on.

        Clients that must agree on indices pass an `index` that was never used before.

        Raises:
            RequestError: the placement is "failover", or the address or index is in use already.
            EngineDeadError: no answer within `timeout` seconds, or the core would give other tokens.
            ConfigError: the address is not valid for a core.
        """
        self._check_alive()
        if self._placement == "failover":
            text = "this client sends all to one core at a time"
            raise RequestError(f"{text}: connect it with placement 'prefix' or 'round-robin' to add cores", "address")
        return await self._connections.join(address, self._transport(address), timeout, index)

    def require_fingerprint(self, fingerprint: str) -> None:
        """Use only cores with this fingerprint from now on, even if there is no such core; empty: any."""
        self._connections.require_fingerprint(fingerprint)

    async def remove_core(self, index: int, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - for running requests
        """Send no more requests to a core, and disconnect once this client's requests there have ended.

        Requests that have not ended after `timeout` seconds continue on other cores.

        Raises:
            RequestError: there is no such core, or no other one.
        """
        await self._connections.leave(self._core(index), timeout)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended yet."""
        return len(self._requests)

    def draw_seeds_from(self, seed: int | None, index: int = 0) -> None:
        """Derive seeds for requests without one from `seed`: the same requests in the same order get the same seeds.

        `index` distinguishes clients of one engine. With None seeds are random, as for a new client.
        """
        # The scheduler hashes the seed into uniform random numbers; this only gives each request a different seed.
        generator = None if seed is None else random.Random(f"{seed}/{index}")  # noqa: S311  it keeps no secret
        self.draw_seed = random_seed if generator is None else partial(generator.getrandbits, 63)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        sink: OutputSink[TokenDelta],
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> int:
        """Start a request; its tokens are pushed to `sink`. Returns the id for `abort` and `explain`.

        `prompt` is token ids, or packed little-endian int32. Without a core the request waits for the next one.
        Parameters that need a tokenizer, such as `stop`, are refused by name.

        Raises:
            RequestError, RequestTooLargeError: the request cannot run; nothing was sent.
            EngineDeadError: the core is gone, and the client no longer waits for another one.
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
        """`submit` for a caller with a tokenizer, which handles the parameters that need one."""
        self._check_alive()
        submit = prepare(prompt, params, self.model, self._with_adapter(scheduling), self.draw_seed)
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
        """Request a prompt's embedding, which goes to `sink`; the prompt may fill the context. Else as `submit`.

        `dimensions` shortens it, if the model was trained for this (`ModelInfo.is_matryoshka`).
        """
        self._check_alive()
        receiver = EmbeddingReceiver(sink, dimensions)
        submit = prepare_embedding(prompt, self.model, self._with_adapter(scheduling), dimensions)
        wanted = self._wanted_core(scheduling)
        return self._requests.start(submit, receiver, receiver.take, scheduling.session, wanted)

    def abort(self, request: int, sample: int = -1) -> Done:
        """End a request, or one sample of it; each unfinished sample gets a last delta. Unknown ids are ignored.

        Takes effect before it returns; the result may be awaited.
        """
        self._requests.abort(request, sample)
        return Done()

    async def generate(
        self, prompt: Prompt, params: SamplingParams, scheduling: SchedulingParams = DEFAULT_SCHEDULING
    ) -> AsyncGenerator[TokenDelta, None]:
        """The request's deltas. Leaving the iterator early, or not reading it for 60 s, aborts the request.

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
        """A prompt's embedding, pooled as `ModelInfo.pooling` says, of length 1. Cancelling it aborts the request.

        Raises:
            DeadlineError: the `timeout` of `scheduling` passed.
            RequestError, RequestTooLargeError, EngineDeadError: as for `submit_embedding`, or later from the core.
        """
        reader = EmbeddingReader()
        request = self.submit_embedding(prompt, reader, scheduling, dimensions)
        try:
            return await reader.result
        finally:
            self.abort(request)  # no effect once the request has ended

    async def explain(self, request: int) -> list[SampleReport]:
        """The state of each sample of a request, and why it makes no progress.

        Raises:
            RequestError: the request has ended. Else as `call`.
        """
        place = self._requests.locate(request)
        if place is None:
            raise RequestError(f"request {request} has ended, or is not of this client", "request")
        core, wire_id = place
        if core is None:
            raise EngineDeadError(self._cores.any_ready.connection.condition().reason)
        return await self._ask(list[SampleReport], "explain", wire_id, core=core.index)

    async def death(self) -> PyllmError:
        """Wait until the client gives up, by `close`, `give_up` or the recovery timeout, and return the reason."""
        await self._died.wait()
        assert self._death is not None
        return self._death

    def give_up(self, error: PyllmError) -> None:
        """Disconnect, and end every request and call with this error."""
        self._end(error)

    def close(self) -> None:
        """Abort running requests and disconnect; may be called more than once."""
        self._requests.abort_all()
        self._end(EngineDeadError("the engine client was closed"), CLOSE_LINGER)

    def beat(self) -> None:
        """Advance time by half a second: send heartbeats, place waiting requests, abort those whose reader is idle.

        The client calls it at 2 Hz.
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

    def _receive(self, core: Core, message: EpochMessage) -> None:
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
                # The core was given time to finish its requests and now ends them; later requests go to another core.
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
            case AdapterList():
                self._adapter_lists.take(core, message)
            case WeightsChanged():
                core.connection.change_weights(message.version)
                self._cores.change_weights(message.version)
                self._requests.change_weights(core, continues=message.continues)

    def _malformed(self, text: str) -> None:
        self.malformed_frames += 1
        logger.warning("a message from the core does not decode: %s", text)

    def _with_adapter(self, scheduling: SchedulingParams) -> SchedulingParams:
        """The parameters with the key of the adapter that they name; a name that is not known here is left as it is."""
        adapter = self.find_adapter(scheduling.adapter) if scheduling.adapter else None
        return scheduling if adapter is None else msgspec.structs.replace(scheduling, adapter=adapter.key)

    def _wanted_core(self, scheduling: SchedulingParams) -> int | None:
        """The core that a request asks for; with "failover" there is one, of index 0.

        Raises:
            RequestError: there is no core with this index.
        """
        wanted = scheduling.data_parallel_rank
        return None if wanted is None else self._core(wanted, "data_parallel_rank").index

    def _check_alive(self) -> None:
        self._owner.check()
        if not self.alive:
            raise self._death or EngineDeadError("the engine client is not connected: await start() first")

    def _end(self, death: PyllmError, linger: float = 0.0) -> None:
        """Disconnect for good, and end every stream and call with an error."""
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
