"""The LoRA adapters of a client's cores: which each core has, and the calls by which all get the same ones.

Knows no requests, and reads no adapter: cores do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pyllm.client.cores import Core, Cores
from pyllm.client.pending_calls import converted
from pyllm.client.reports import AdapterReport
from pyllm.errors import EngineDeadError, RequestError
from pyllm.wire.messages import Adapter, AdapterList

# Seconds for a core to load an adapter; one of the hub is downloaded first.
LOAD_TIMEOUT = 600.0

# Calls a method of one core: the core, the method, its arguments, and the seconds that it may take.
Call = Callable[[Core, str, tuple[Any, ...], float], Awaitable[Any]]

logger = logging.getLogger(__name__)


class AdapterLists:
    """Names are those of adapters that every core has; a core that serves none at all does not count.

    While one is replaced, cores may have different ones of a name: the first core's counts, and requests go to cores
    that have the same.

    `on_change` is called when requests that wait for an adapter may be sent.
    """

    def __init__(self, cores: Cores, call: Call, on_change: Callable[[], None]) -> None:
        self._cores = cores
        self._call = call
        self._on_change = on_change
        self._filling: set[asyncio.Task[None]] = set()

    @property
    def served(self) -> tuple[Adapter, ...] | None:
        """The adapters, in the order of the first core; None if no core serves any."""
        lists = self._lists()
        if not lists:
            return None
        return tuple(each for each in lists[0].values() if all(each.name in other for other in lists[1:]))

    def find(self, name: str) -> Adapter | None:
        """The adapter of this name, if there is one."""
        lists = self._lists()
        found = lists[0].get(name) if lists else None
        return found if all(name in other for other in lists[1:]) else None

    def take(self, core: Core, message: AdapterList) -> None:
        """Take a core's list."""
        core.adapters = {adapter.name: adapter for adapter in message.adapters}
        core.adapters_epoch = message.epoch
        if core.awaited_adapters:
            for adapter in message.adapters:
                core.awaited_adapters.pop(adapter.key, None)
            self._on_change()

    def begin(self, core: Core) -> None:
        """Give a core that is ready the adapters that it lacks: those of its predecessor and of the other cores.

        Requests that need one wait until the core has it, or cannot have it.
        """
        if core.adapters_epoch == core.epoch:
            return  # The connection was lost, and not the core.
        wanted = {adapter.name: adapter for each in self._cores.all() for adapter in (each.adapters or {}).values()}
        core.awaited_adapters = {adapter.key: adapter for adapter in wanted.values()}
        if wanted:
            task = asyncio.ensure_future(self._fill(core, core.epoch, list(wanted.values())))
            self._filling.add(task)
            task.add_done_callback(self._filling.discard)

    async def load(self, name: str, path: str, *, in_place: bool) -> Adapter:
        """Load an adapter into every core.

        Raises:
            RequestError: a core cannot use it, or two cores read different files; a new one is then in no core.
            EngineDeadError: no core is ready, or all were lost meanwhile.
        """
        is_new = self.find(name) is None
        cores = self._open()
        answers = await asyncio.gather(
            *(self._load(core, name, path, in_place) for core in cores), return_exceptions=True
        )
        loaded = {core: each for core, each in zip(cores, answers, strict=True) if isinstance(each, Adapter)}
        error = _worst(each for each in answers if isinstance(each, BaseException))
        if len({adapter.key for adapter in loaded.values()}) > 1:
            error = RequestError(f"the cores read different files of the adapter {name!r:.200}", "lora_path")
        if error is None or (loaded and isinstance(error, EngineDeadError)):
            return next(iter(loaded.values()))
        if is_new:
            await asyncio.gather(*(self._unload(core, name) for core in loaded), return_exceptions=True)
        raise error

    async def unload(self, name: str) -> None:
        """Remove an adapter's name from every core; requests that have begun go on.

        Raises:
            RequestError: no core has it.
            EngineDeadError: no core is ready, or all were lost meanwhile.
        """
        for core in self._cores.all():
            core.awaited_adapters = {key: each for key, each in core.awaited_adapters.items() if each.name != name}
        answers = await asyncio.gather(*(self._unload(core, name) for core in self._open()), return_exceptions=True)
        errors = [each for each in answers if isinstance(each, BaseException)]
        if len(errors) == len(answers) and (error := _worst(errors)) is not None:
            raise error

    def _lists(self) -> list[Mapping[str, Adapter]]:
        """The lists of the cores that requests may go to; without such cores, the last that there were."""
        cores = [core for core in self._cores.all() if core.adapters is not None or core.awaited_adapters]
        return [_expected(core) for core in [core for core in cores if core.is_open] or cores]

    def _open(self) -> Sequence[Core]:
        return [core for core in self._cores.all() if core.is_open] or [self._cores.any_ready]

    async def _load(self, core: Core, name: str, path: str, in_place: bool = False) -> Adapter:
        answer = await self._call(core, "load_adapter", (name, path, in_place), LOAD_TIMEOUT)
        return converted(answer, Adapter, "load_adapter")

    async def _unload(self, core: Core, name: str) -> None:
        await self._call(core, "unload_adapter", (name,), LOAD_TIMEOUT)

    async def _fill(self, core: Core, epoch: int, wanted: Sequence[Adapter]) -> None:
        try:
            for adapter in wanted:
                # The core's own list comes before its first answer.
                if core.epoch == epoch and adapter.key in core.awaited_adapters:
                    await self._fill_one(core, adapter)
                    core.awaited_adapters.pop(adapter.key, None)
                    self._on_change()
        except (EngineDeadError, TimeoutError) as error:
            logger.warning("core %d did not get all adapters of the others: %s", core.index, error)
        finally:
            if core.epoch == epoch:
                core.awaited_adapters.clear()
                if core.adapters_epoch != epoch:
                    core.adapters = None  # It serves none.
            self._on_change()

    async def _fill_one(self, core: Core, wanted: Adapter) -> None:
        try:
            adapter = await self._load(core, wanted.name, wanted.path)
            if adapter.key != wanted.key:
                await self._unload(core, wanted.name)
                raise RequestError(f"its files in {wanted.path} have changed")
        except RequestError as error:
            logger.error("core %d cannot serve the adapter %s: %s", core.index, wanted.name, error)


def _expected(core: Core) -> Mapping[str, Adapter]:
    """A core's list, with those that it will have."""
    known = core.adapters or {}
    if not core.awaited_adapters:
        return known
    return {**known, **{adapter.name: adapter for adapter in core.awaited_adapters.values()}}


def merged_reports(of_cores: Iterable[Sequence[AdapterReport]]) -> list[AdapterReport]:
    """One report of each adapter, with the requests of all cores; it is loaded where all have loaded it."""
    merged: dict[tuple[str, str], AdapterReport] = {}
    for reports in of_cores:
        for report in reports:
            key = report.name, report.digest
            if (before := merged.get(key)) is None:
                merged[key] = report
                continue
            merged[key] = msgspec.structs.replace(
                before,
                is_listed=before.is_listed or report.is_listed,
                is_loaded=before.is_loaded and report.is_loaded,
                num_running=before.num_running + report.num_running,
                num_waiting=before.num_waiting + report.num_waiting,
            )
    return list(merged.values())


def _worst(errors: Iterable[BaseException]) -> BaseException | None:
    """The error that says most: a lost core is replaced by another one, all else is final."""
    found = list(errors)
    return next((each for each in found if not isinstance(each, EngineDeadError)), found[0] if found else None)
