"""Opens, watches and closes the connections of one client to its cores, also while requests run.

Moves requests when a core becomes ready, is lost or leaves; knows neither their contents nor messages about them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pyllm.client.core_connection import (
    CORE_LOSS,
    LOSS_AMONG_SEVERAL,
    CoreConnect,
    CoreConnection,
    EpochMessage,
    Handlers,
)
from pyllm.client.cores import Core, Cores
from pyllm.client.pending_calls import Calls
from pyllm.client.running_requests import RunningRequests
from pyllm.config.engine_settings import MAX_CORES
from pyllm.errors import EngineDeadError, PyllmError, RequestError

CLOSE_LINGER = 1.0  # seconds that the last aborts get to leave


class ConnectionLimits(NamedTuple):
    """Whether requests go to one core at a time, and how many seconds they wait for another one.

    Unless it `awaits_first`, a connection that ends before the first answer is not tried again.
    """

    one_at_a_time: bool
    recovery_timeout: float
    awaits_first: bool


class CoreConnections:
    """`on_ready` is called when a core can be used, before requests go there; `on_end` gets the final error.

    `on_message` gets each core's messages, `on_malformed` frames that do not decode.
    """

    def __init__(
        self,
        cores: Cores,
        requests: RunningRequests,
        calls: Calls,
        limits: ConnectionLimits,
        *,
        on_ready: Callable[[Core], None],
        on_message: Callable[[Core, EpochMessage], None],
        on_malformed: Callable[[str], None],
        on_end: Callable[[PyllmError], None],
    ) -> None:
        self._cores = cores
        self._requests = requests
        self._calls = calls
        self._limits = limits
        self._on_ready = on_ready
        self._on_message = on_message
        self._on_malformed = on_malformed
        self._on_end = on_end
        self._was_ready = False
        self._changed = asyncio.Event()  # set when a core is ready or refused, or the client closes

    @property
    def was_ready(self) -> bool:
        """Whether a core has answered."""
        return self._was_ready

    def add(self, address: str, connects: Sequence[CoreConnect], index: int | None = None) -> Core:
        """Add a core at one of several addresses, without opening a connection yet."""
        core = self._cores.add(address, index)
        handlers = Handlers(
            partial(self._become_ready, core),
            partial(self._on_message, core),
            self._on_malformed,
            partial(self._lose, core),
            partial(self._refuse, core),
        )
        one_at_a_time, _, awaits_first = self._limits
        core.connection = CoreConnection(
            handlers,
            connects,
            self._cores.counts,
            core_loss=CORE_LOSS if one_at_a_time else LOSS_AMONG_SEVERAL,
            awaits_first=awaits_first or not one_at_a_time,
            wants_load_reports=not one_at_a_time,
        )
        return core

    def open(self) -> None:
        """Say hello to every core."""
        for core in self._cores.all():
            core.connection.open()

    def close(self, linger: float = 0.0) -> None:
        """Disconnect from every core; queued messages get `linger` seconds to leave."""
        for core in self._cores.all():
            core.connection.close(linger)
        self._changed.set()

    async def first_ready(self, is_over: Callable[[], bool]) -> None:
        """Wait until a core is ready, or `is_over()`."""
        while not self._was_ready and not is_over():
            self._changed.clear()
            await self._changed.wait()

    async def all_settled(self, seconds: float) -> None:
        """Wait until each core is ready or refused, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(self._settled(core) for core in self._cores.all()))

    async def join(self, address: str, connect: CoreConnect, seconds: float, index: int | None) -> int:
        """Add a core, wait for its answer, and return its index.

        Raises:
            RequestError: the address or index is in use already, or there are already `MAX_CORES` cores.
            EngineDeadError: no answer within `seconds`, or the core would give other tokens.
        """
        if any(core.address == address for core in self._cores.all()):
            raise RequestError(f"the core at {address} is there already", "address")
        if len(self._cores) == MAX_CORES:
            raise RequestError(f"there are {MAX_CORES} cores, and a client has no more: remove one first", "address")
        if index is not None and self._cores.get(index) is not None:
            raise RequestError(f"there is a core {index} already", "index")
        core = self.add(address, [connect], index)
        core.connection.open()
        try:
            async with asyncio.timeout(seconds):
                await self._settled(core)
            if core.failure is not None:
                raise EngineDeadError(str(core.failure))
        except TimeoutError:
            self._remove(core)
            check = "see that one is bound there, and with the same keys over tcp://"
            raise EngineDeadError(f"no core answered at {address} within {seconds:g} s: {check}") from None
        except BaseException:
            self._remove(core)
            raise
        return core.index

    async def leave(self, core: Core, seconds: float) -> None:
        """Send no more requests to a core, and disconnect once its own have ended; after `seconds` the rest move.

        Raises:
            RequestError: there is no other core.
        """
        if not any(each.failure is None and not each.is_leaving for each in self._cores.all() if each is not core):
            raise RequestError(f"core {core.index} is the only one: add another one before it leaves", "core")
        core.is_leaving = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await core.emptied.wait()
        except asyncio.CancelledError:
            core.is_leaving = False
            raise
        if self._cores.get(core.index) is core:  # otherwise another call has removed it
            self._requests.leave(core)
            self._remove(core)

    def require_fingerprint(self, fingerprint: str) -> None:
        """Use only cores with this fingerprint from now on; empty: any. Begun requests on other cores fail."""
        for core in self._cores.require_fingerprint(fingerprint):
            error = self._cores.fingerprint_error(core, fingerprint)
            self._requests.leave(core)
            self._calls.fail_all(error, core.index)
            self._cores.forget(core)
            self._refuse(core, error)
        self._requests.place_waiting()

    def beat(self) -> None:
        """Send heartbeats and notice silent cores; end the client if none was ready for the recovery timeout."""
        for core in self._cores.all():
            if core.failure is None:
                core.connection.beat()
        connections = [core.connection for core in self._cores.all() if core.failure is None]
        limit = self._limits.recovery_timeout
        if self._was_ready and all(not each.is_ready and each.outage > limit for each in connections):
            loss = next((each.loss for each in connections if each.loss), "the engine cores were lost")
            self._on_end(EngineDeadError(f"{loss}, and none was ready within {limit:g} s"))

    def _remove(self, core: Core) -> None:
        self._cores.remove(core)
        core.connection.close(CLOSE_LINGER)
        self._calls.fail_all(EngineDeadError(f"core {core.index} has left"), core.index)
        self._requests.place_waiting()

    async def _settled(self, core: Core) -> None:
        """Wait until a core is ready, or refused."""
        while not core.connection.is_ready and core.failure is None:
            self._changed.clear()
            await self._changed.wait()

    def _become_ready(self, core: Core, is_known: bool) -> None:
        before, epoch = core.epoch, core.connection.epoch
        follows_loss = before not in (0, epoch)
        if is_known and follows_loss:
            self._requests.lose(core, before, EngineDeadError("another engine core has taken its place"))
        elif is_known:
            self._requests.leave(core)
        error = self._cores.become_ready(core, follows_loss=follows_loss)
        if error is None:
            self._on_ready(core)
            self._was_ready = True
            self._changed.set()
        else:
            self._refuse(core, error)
        self._requests.place_waiting()

    def _lose(self, core: Core, loss: EngineDeadError) -> None:
        self._calls.fail_all(loss, core.index)
        self._cores.forget(core)
        self._requests.lose(core, core.epoch, loss)
        if len(self._cores) > 1:
            self._requests.place_waiting()

    def _refuse(self, core: Core, error: PyllmError) -> None:
        """Stop using a core; end the client if no usable core is left."""
        self._cores.refuse(core, error)
        self._changed.set()
        if all(each.failure is not None for each in self._cores.all()):
            self._on_end(error)
