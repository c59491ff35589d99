"""The list of a server's cores: cores in use, cores that leave, and the API processes still connected to those.

Knows no connection and no request.
"""

from collections.abc import Callable, Sequence

import msgspec

from pyllm.config.engine_settings import MAX_CORES
from pyllm.config.process_config import SharedConfig
from pyllm.frontend.shared.messages import CoreRefusal
from pyllm.wire.supervision_messages import CoreEntry, CoreList


class CoreMembership:
    """The versioned list. `on_capacity` is called with the number of sequences that its cores run at once.

    A core that leaves gets no new requests, and stays in the list until no API process is connected to it. `on_change`
    gets each list, so that the supervisor can start the next shared state with it. A newer list of an API process
    replaces this one.
    """

    def __init__(
        self,
        config: SharedConfig,
        on_capacity: Callable[[int], None] = lambda sequences: None,
        on_change: Callable[[CoreList], None] = lambda cores: None,
    ) -> None:
        self._on_capacity = on_capacity
        self._on_change = on_change
        self._connected: dict[int, frozenset[int]] = {}
        self._waiting: dict[int, Callable[[], None]] = {}
        self._list = config.cores or first_cores(config)
        if config.cores:
            self._tell_capacity()

    @property
    def list(self) -> CoreList:
        """The current list of cores."""
        return self._list

    def reserve(self, known: CoreList) -> int:
        """The index for a core that is to be added; no other core gets it."""
        self._adopt(known)
        index = self._list.next_index
        self._list = msgspec.structs.replace(self._list, next_index=index + 1)
        return index

    def add(self, known: CoreList, entry: CoreEntry) -> CoreList | CoreRefusal:
        """Make all API processes use a core, unless they do already."""
        self._adopt(known)
        cores = self._list.cores
        if (same := next((core for core in cores if core.address == entry.address), None)) is not None:
            state = "is leaving: add it again when it has left" if same.is_leaving else "is in use already"
            return CoreRefusal(f"core {same.index} at {entry.address} {state}")
        if len(cores) == MAX_CORES:
            return CoreRefusal(f"the server has {MAX_CORES} cores, the most that it may have: remove one first")
        self._change((*cores, entry), known.fingerprint)
        return self._list

    def leave(self, known: CoreList, index: int, timeout: float) -> CoreList | CoreRefusal:
        """Make a core leave: its requests get `timeout` seconds to finish, and then move to another core."""
        self._adopt(known)
        cores = self._list.cores
        staying = [core.index for core in self._list.staying]
        if all(core.index != index for core in cores):
            named = ", ".join(str(core.index) for core in cores)
            return CoreRefusal(f"there is no core {index}: the server has {named}", is_unknown=True)
        if staying == [index]:
            return CoreRefusal(f"core {index} is the only one that takes requests: add another one first")
        if index in staying:
            self._change(
                tuple(
                    msgspec.structs.replace(core, is_leaving=True, leave_timeout=timeout)
                    if core.index == index
                    else core
                    for core in cores
                )
            )
        return self._list

    def connect(self, member: int, known: CoreList, connected: Sequence[int]) -> None:
        """Note an API process's connected cores, and the list that it knows, with its cores' fingerprint."""
        self._adopt(known)
        if known.fingerprint and not self._list.fingerprint and len(self._list.staying) > 1:
            self._change(self._list.cores, known.fingerprint)
        self._connected[member] = frozenset(connected)
        self._let_go()

    def wait(self, member: int, wake: Callable[[], None]) -> None:
        """Call `wake` once, when the list has changed or the API process waits anew."""
        earlier = self._waiting.get(member)
        self._waiting[member] = wake
        if earlier is not None:
            earlier()

    def drop(self, member: int) -> None:
        """Remove an API process that is gone, with its connections."""
        self._connected.pop(member, None)
        self._waiting.pop(member, None)
        self._let_go()

    def _adopt(self, known: CoreList) -> None:
        if known.version > self._list.version:
            next_index = max(known.next_index, self._list.next_index)
            self._list = msgspec.structs.replace(known, next_index=next_index)
            self._announce()

    def _let_go(self) -> None:
        held = frozenset().union(*self._connected.values())
        cores = self._list.cores
        if any(core.is_leaving and core.index not in held for core in cores):
            self._change(tuple(core for core in cores if not core.is_leaving or core.index in held))

    def _change(self, cores: tuple[CoreEntry, ...], fingerprint: str = "") -> None:
        before, num_staying = self._list, sum(not core.is_leaving for core in cores)
        # A single core may restart with another model.
        fingerprint = (fingerprint or before.fingerprint) if num_staying > 1 else ""
        self._list = CoreList(before.version + 1, cores, before.next_index, fingerprint)
        self._announce()

    def _tell_capacity(self) -> None:
        self._on_capacity(sum(core.max_num_seqs for core in self._list.staying))

    def _announce(self) -> None:
        self._on_change(self._list)
        self._tell_capacity()
        waiting, self._waiting = self._waiting, {}
        for wake in waiting.values():
            wake()


def first_cores(config: SharedConfig) -> CoreList:
    """The cores that a server starts with."""
    each = config.max_num_seqs // max(1, len(config.core_addresses))
    cores = [CoreEntry(index, address, each) for index, address in enumerate(config.core_addresses)]
    return CoreList(0, tuple(cores), len(cores))
