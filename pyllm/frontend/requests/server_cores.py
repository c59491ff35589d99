"""The cores of a server: the client of each API process follows the list of cores that all API processes share.

Knows no route, and of requests only their number on each core.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from pyllm.client.client import EngineClient
from pyllm.client.core_connection import CoreConnect, over_zeromq
from pyllm.config.engine_settings import CorePlacement
from pyllm.config.process_config import ApiConfig
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import EngineDeadError, PyllmError, RequestError
from pyllm.frontend.http.failure import UnknownCoreError
from pyllm.frontend.shared.messages import CoreRefusal
from pyllm.frontend.shared.remote_state import Shared
from pyllm.wire.curve import client_keys
from pyllm.wire.sockets import is_core_address
from pyllm.wire.supervision_messages import CoreEntry, CoreList

ADD_TIMEOUT = 10.0  # seconds that a core has to answer before it is not added
RETRY = 2.0  # seconds until a core that another API process has added is tried again
NOTHING_KNOWN = CoreList(version=-1)

logger = logging.getLogger(__name__)


class CoreStatus(msgspec.Struct, frozen=True):
    """A core as the answering API process sees it, with that process's requests. `reason` says why it is not ready.

    A core that `is_leaving` gets no requests, and is removed once no API process has any on it.
    """

    index: int
    address: str
    model: str
    fingerprint: str
    ready: bool
    reason: str
    num_requests: int
    is_leaving: bool


def core_transport(server: ServerConfig) -> Callable[[str], CoreConnect]:
    """The transport to a core at an address: over tcp:// with the server's keys, if it has any."""
    keys = client_keys(Path(server.curve_keys)) if server.curve_keys else None
    # Cores that the server started are behind sockets that only its user can open.
    return lambda address: over_zeromq(address, keys if address.startswith("tcp://") else None)


async def connect_cores(
    known: CoreList,
    placement: CorePlacement,
    transport: Callable[[str], CoreConnect],
    ready_timeout: float,
    *,
    placement_recording: str = "",
) -> EngineClient:
    """A client of the cores in the list that do not leave, under their indices.

    All inputs of placement are recorded in the new file `placement_recording`, if one is named.

    Raises:
        ConfigError: that file exists already, or cannot be made.
        EngineDeadError: no core answered within `ready_timeout` seconds, or none has the list's fingerprint.
    """
    cores = known.staying
    client = EngineClient(
        *(transport(core.address) for core in cores),
        placement=placement,
        addresses=[core.address for core in cores],
        indices=[core.index for core in cores],
        awaits_first=True,
        placement_recording=Path(placement_recording) if placement_recording else None,
        transport=transport,
    )
    client.require_fingerprint(known.fingerprint)
    try:
        await client.start(ready_timeout)
    except TimeoutError:
        raise EngineDeadError(f"no core answered within {ready_timeout:g} s") from None
    return client


class ServerCores:
    """The cores of `client`, which was connected to the list `known`. `follow` must run beside the server."""

    def __init__(
        self, client: EngineClient, shared: Shared, server: ServerConfig, known: CoreList = NOTHING_KNOWN
    ) -> None:
        self.client = client
        self._shared = shared
        self._server = server
        self._known = known
        self._adding: set[int] = set()
        self._changes: dict[int, asyncio.Task[None]] = {}  # cores that this process's client connects to, or leaves

    @classmethod
    async def connect(cls, config: ApiConfig, shared: Shared) -> Self:
        """Connect a client to the cores in the shared list, for an API process of this configuration.

        Raises:
            ConfigError: a core's keys cannot be read, or the recording cannot be made.
            EngineDeadError: no core answered within the server's `ready_timeout`.
        """
        known = await shared.follow_cores(NOTHING_KNOWN, ())
        client = await connect_cores(
            known,
            config.placement,
            core_transport(config.server),
            config.server.ready_timeout,
            placement_recording=config.placement_recording,
        )
        client.draw_seeds_from(config.seed, config.index)
        return cls(client, shared, config.server, known)

    def status(self) -> list[CoreStatus]:
        """All cores by index, including those that only other API processes have not left yet."""
        listed = {core.index: core for core in self._known.cores}
        found = {}
        for core in self.client.cores:
            is_leaving = core.is_leaving or (core.index in listed and listed[core.index].is_leaving)
            found[core.index] = CoreStatus(
                core.index,
                core.address,
                core.model,
                core.fingerprint,
                core.condition.ready,
                core.condition.reason,
                core.num_requests,
                is_leaving,
            )
        for entry in listed.values():
            if entry.index not in found:
                reason = "another API process has requests there" if entry.is_leaving else "it has not answered yet"
                found[entry.index] = CoreStatus(entry.index, entry.address, "", "", False, reason, 0, entry.is_leaving)
        return [found[index] for index in sorted(found)]

    def _max_num_seqs(self, index: int) -> int:
        return next(core.max_num_seqs for core in self.client.cores if core.index == index)

    async def add(self, address: str) -> int:
        """Make all API processes use a core that is bound to this address; gives its index.

        Raises:
            RequestError: the address is malformed, needs keys, or is in use; or no core answers there that gives the
                same tokens.
            EngineDeadError: the state that API processes share is unavailable.
        """
        self._check(address)
        index = await self._shared.reserve_core(self._known)
        self._adding.add(index)
        try:
            try:
                await self.client.add_core(address, ADD_TIMEOUT, index=index)
            except EngineDeadError as error:
                raise RequestError(str(error), "address") from None
            try:
                entry = CoreEntry(index, address, self._max_num_seqs(index))
                self._take(await self._shared.add_core(self._list_with_fingerprint, entry))
            except BaseException:
                await self.client.remove_core(index, 0.0)
                raise
        finally:
            self._adding.discard(index)
        return index

    async def remove(self, index: int, timeout: float) -> None:  # noqa: ASYNC109 - the time of its requests
        """Make all API processes leave a core; its requests get so many seconds, and then move to other cores.

        Raises:
            UnknownCoreError: there is no core of this index.
            RequestError: it is the only core, or no other one is ready.
            EngineDeadError: the state that API processes share is unavailable.
        """
        others = [core for core in self.client.cores if core.index != index]
        if others and not any(core.condition.ready and not core.is_leaving for core in others):
            reasons = "; ".join(f"core {core.index}: {core.condition.reason or 'it leaves'}" for core in others)
            raise RequestError(f"core {index} stays, as no other core is ready ({reasons})", "index")
        self._take(await self._shared.remove_core(self._known, index, timeout))

    async def follow(self) -> None:
        """Keep the client connected to the cores of the shared list."""
        while True:
            self._changes = {index: task for index, task in self._changes.items() if not task.done()}
            self._change()
            connected = tuple(core.index for core in self.client.cores)
            asking = asyncio.create_task(self._shared.follow_cores(self._list_with_fingerprint, connected))
            try:
                await asyncio.wait({asking, *self._changes.values()}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    self._take(asking.result())
            except EngineDeadError:  # The shared state is unavailable; its client looks for a successor.
                await asyncio.sleep(RETRY)
            finally:
                asking.cancel()

    @property
    def _list_with_fingerprint(self) -> CoreList:
        """The list, with the fingerprint of its cores' model if this process knows it."""
        fingerprint = self._known.fingerprint or self.client.base_fingerprint
        return msgspec.structs.replace(self._known, fingerprint=fingerprint)

    def _take(self, answer: CoreList | CoreRefusal) -> None:
        if isinstance(answer, CoreRefusal):
            raise UnknownCoreError(answer.text) if answer.is_unknown else RequestError(answer.text)
        if answer.version > self._known.version:
            self._known = answer
            self.client.require_fingerprint(answer.fingerprint)

    def _change(self) -> None:
        """Begin to join and to leave cores as the list says."""
        connected = {core.index for core in self.client.cores}
        listed = {core.index: core for core in self._known.cores}
        for index, entry in listed.items():
            task = self._changes.get(index)
            if entry.is_leaving and index in connected and task is None:
                self._changes[index] = asyncio.create_task(self._leave(index, entry.leave_timeout))
            elif entry.is_leaving and index not in connected and task is not None:
                task.cancel()  # It is not connected yet.
            elif not entry.is_leaving and index not in connected | self._adding and task is None:
                self._changes[index] = asyncio.create_task(self._join(entry))
        for index in connected - listed.keys() - self._adding - self._changes.keys():
            self._changes[index] = asyncio.create_task(self._leave(index, 0.0))

    async def _join(self, entry: CoreEntry) -> None:
        try:
            await self.client.add_core(entry.address, ADD_TIMEOUT, index=entry.index)
        except PyllmError as error:
            logger.warning("core %d, which another API process uses, cannot be used here: %s", entry.index, error)
            await asyncio.sleep(RETRY)

    async def _leave(self, index: int, seconds: float) -> None:
        try:
            await self.client.remove_core(index, seconds)
        except PyllmError as error:
            logger.warning("core %d is not left yet: %s", index, error)
            await asyncio.sleep(RETRY)

    def _check(self, address: str) -> None:
        if not is_core_address(address) or address.endswith("*"):
            raise RequestError(f"address must be ipc://PATH or tcp://HOST:PORT, got {address!r:.200}", "address")
        if address.startswith("tcp://") and not (self._server.curve_keys or self._server.insecure_tcp):
            raise RequestError(
                "tcp:// needs keys: start the server with --curve-keys FOLDER (`pyllm keygen FOLDER`), or with "
                "--insecure-tcp",
                "address",
            )
        if any(core.address == address for core in self._known.cores):
            raise RequestError(f"the core at {address} is there already, or still leaves", "address")
