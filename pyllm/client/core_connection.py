"""The connection to a core, from one epoch to the next: hello, heartbeats, silence, and the search for a successor.

Knows neither requests nor other cores: it calls back whenever a core is ready or lost.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import zmq

from pyllm.errors import EngineDeadError, ProtocolError, PyllmError
from pyllm.wire import ipc
from pyllm.wire.curve import CurveKeys
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL, SILENCE
from pyllm.wire.link import Connect, Link
from pyllm.wire.messages import (
    PROTOCOL_VERSION,
    AdapterList,
    ClientMessage,
    CoreMessage,
    Deltas,
    Heartbeat,
    Hello,
    Isolated,
    LoadReport,
    ModelInfo,
    Ready,
    Rejected,
    Reply,
    WeightsChanged,
)
from pyllm.wire.sockets import check_core_address

# Seconds, but counted in our own heartbeats and not by the clock: a process that was stopped for a minute must not
# blame the core. After `SILENCE` without a message from it, a core counts as not ready.
CORE_LOSS = 10.0  # without a message from a core before it counts as lost
LOSS_AMONG_SEVERAL = 5.0  # the same, if other cores can take its requests
ATTEMPT = 2.5  # for a core to answer before the next address is tried

CoreConnect = Connect[CoreMessage, ClientMessage]

logger = logging.getLogger(__name__)


class Condition(msgspec.Struct, frozen=True):
    """Whether requests make progress. `reason` says why not.

    `stalled`: requests wait, and no step completes; `paused`: they wait until a client resumes the core.
    """

    ready: bool
    stalled: bool = False
    reason: str = ""
    paused: bool = False


class ConnectionCounts(msgspec.Struct):
    """Counts of cores that answered, each restart included, and of requests that were sent again."""

    num_core_connections: int = 0
    num_resubmitted_requests: int = 0


# What a core sends about the current epoch, once it is ready.
EpochMessage = Deltas | Reply | Rejected | Isolated | LoadReport | AdapterList | WeightsChanged


class Handlers(NamedTuple):
    """Callbacks, from the event loop.

    `on_ready(is_known)`: a core is ready, and `epoch` is set; with `is_known` it may still have some of our requests,
    otherwise it has none. `on_lost`: the connection was lost, and the search for the same or another core begins.
    `on_final`: the search is over. `on_message`: a message about requests, calls or adapters of the current epoch.
    """

    on_ready: Callable[[bool], None]
    on_message: Callable[[EpochMessage], None]
    on_malformed: Callable[[str], None]
    on_lost: Callable[[EngineDeadError], None]
    on_final: Callable[[PyllmError], None]


def over_zeromq(address: str, keys: CurveKeys | None) -> CoreConnect:
    """A function that connects to an address by a new DEALER with a fresh identity.

    Raises:
        ConfigError: the address is not valid for a core.
    """
    check_core_address(address)

    def connect(
        on_message: ipc.MessageHandler[CoreMessage],
        on_malformed: ipc.MalformedHandler,
        on_disconnect: Callable[[], None],
    ) -> ipc.Sender[ClientMessage]:
        socket = ipc.connect(zmq.Context.instance(), address, keys)
        return ipc.Endpoint(socket, CoreMessage, on_message, on_malformed, on_disconnect)

    return connect


class CoreConnection:
    """A connection to a core at one of several addresses: each of `connects` opens a socket to one; they take turns.

    Call `beat` every `HEARTBEAT_INTERVAL`. Unless it `awaits_first`, the connection fails for good if every address
    ends the first hello: it may require keys. A core that is silent for `core_loss` seconds is lost. With
    `wants_load_reports` the core sends `LoadReport`.
    """

    def __init__(
        self,
        handlers: Handlers,
        connects: Sequence[CoreConnect],
        counts: ConnectionCounts,
        *,
        core_loss: float = CORE_LOSS,
        awaits_first: bool = False,
        wants_load_reports: bool = False,
    ) -> None:
        self.model: ModelInfo
        self.base_fingerprint = ""  # of the weights that the core was started with
        self.epoch = 0
        self.is_ready = False
        self._counts = counts
        self._handlers = handlers
        self._connects = connects
        self._address_index = -1  # in `connects`
        self._core_loss = core_loss
        self._awaits_first = awaits_first
        self._hello = Hello(PROTOCOL_VERSION, wants_load_reports)
        self._link: Link[CoreMessage, ClientMessage] = Link(self._receive, handlers.on_malformed, self._lose)
        self._silent_beats = 0  # heartbeat intervals without a message
        self._outage_beats = 0
        self._num_losses = 0  # before a first core was ready
        self._core_heartbeat = Heartbeat("ready")  # the last from the core
        self._loss = ""

    def open(self) -> None:
        """Say hello to the core at the next address."""
        self.is_ready = False
        self._silent_beats = 0
        self._address_index = (self._address_index + 1) % len(self._connects)
        self._link.open(self._connects[self._address_index])
        self._link.post(self._hello)

    def post(self, message: ClientMessage) -> None:
        """Send a message. Dropped unless the core is ready, as its epoch would be over."""
        if self.is_ready:
            self._link.post(message)

    def beat(self) -> None:
        """Send a heartbeat and unsent messages; notice a silent core; without a core try the next address."""
        self._silent_beats += 1
        if self.is_ready:
            self._link.flush()
            if not self._link.num_unsent:
                self._link.post(Heartbeat("client"))
            if self._silent_beats * HEARTBEAT_INTERVAL > self._core_loss:
                self._lose(f"the engine core gave no sign of life for {self._core_loss:g} s")
            return
        self._outage_beats += 1
        if not self._link.is_open or self._silent_beats * HEARTBEAT_INTERVAL > ATTEMPT:
            self.open()
        else:
            self._link.flush()

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides a token's logits, the current weights included; empty before the first core."""
        version = self.model.weights_version if self.base_fingerprint else ""
        return f"{self.base_fingerprint}+{version}" if version else self.base_fingerprint

    def change_weights(self, version: str) -> None:
        """Note that the core computes with other weights."""
        self.model = msgspec.structs.replace(self.model, weights_version=version)

    @property
    def outage(self) -> float:
        """Seconds spent waiting for a core; 0 while one is ready."""
        return self._outage_beats * HEARTBEAT_INTERVAL

    @property
    def loss(self) -> str:
        """The reason for the loss of the last core; empty if none was lost."""
        return self._loss

    @property
    def stage(self) -> str:
        """The `CoreStage` that the core last reported."""
        return self._core_heartbeat.stage or "ready"

    def condition(self) -> Condition:
        """The core's condition, as far as this client can know it."""
        if not self.is_ready:
            loss = self._loss or "no engine core has answered"
            return Condition(False, reason=f"{loss}; another one has been awaited for {self.outage:g} s")
        silence = self._silent_beats * HEARTBEAT_INTERVAL
        if silence >= SILENCE:
            return Condition(False, reason=f"the engine core has given no sign of life for {silence:g} s")
        if self.stage == "ready":
            return Condition(True)
        reason = self._core_heartbeat.reason or f"the engine core is {self.stage}"
        return Condition(False, self.stage == "stalled", reason, self.stage == "paused")

    def close(self, linger: float = 0.0) -> None:
        """Disconnect; queued messages get `linger` seconds to leave."""
        self.is_ready = False
        self._link.close(linger)

    def _receive(self, message: CoreMessage) -> None:
        self._silent_beats = 0
        match message:
            case Ready():
                self._become_ready(message)
            case Rejected(None, "hello"):
                self._link.post(self._hello)
            case Rejected(None, "version", text):
                self._handlers.on_final(ProtocolError(text))
            case Heartbeat():
                self._core_heartbeat = message
            case Deltas(epoch) | Isolated(epoch) | LoadReport(epoch) | AdapterList(epoch) | WeightsChanged(epoch) if (
                epoch != self.epoch
            ):
                pass
            case Deltas() | Reply() | Rejected() | Isolated() | LoadReport() | AdapterList() | WeightsChanged():
                if self.is_ready:
                    self._handlers.on_message(message)

    def _become_ready(self, ready: Ready) -> None:
        if ready.version != PROTOCOL_VERSION:
            text = f"the core speaks version {ready.version} of the protocol, this client {PROTOCOL_VERSION}"
            self._handlers.on_final(ProtocolError(text))
            return
        is_known = self.is_ready
        if ready.epoch != self.epoch:
            self._counts.num_core_connections += 1
        if self._outage_beats and self.base_fingerprint:
            logger.info("a core is ready after %g s", self.outage)
        self.model, self.base_fingerprint, self.epoch = ready.model, ready.fingerprint, ready.epoch
        self.is_ready = True
        self._outage_beats = 0
        self._core_heartbeat = Heartbeat("ready")
        self._handlers.on_ready(is_known)

    def _lose(self, loss: str = "the connection to the engine core was lost") -> None:
        was_ready = self.is_ready
        self._link.close()
        if not self.base_fingerprint:
            self._num_losses += 1
            if self._num_losses >= len(self._connects) and not self._awaits_first:
                text = f"{loss} before it answered; over tcp:// it may want keys"
                self._handlers.on_final(EngineDeadError(text))
            return  # The next address is tried at the next heartbeat.
        if not was_ready:
            return
        self._loss = loss
        logger.warning("%s; looking for another core", loss)
        self.is_ready = False
        self._handlers.on_lost(EngineDeadError(loss))
        self.open()
