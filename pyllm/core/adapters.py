"""The LoRA adapters of a core: their names, the copies in the ranks' host memory, and the requests that wait for one.

Reads no weights, which the ranks do. The scheduler decides which adapters are in device slots.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pyllm._rust import Scheduler, SchedulerError
from pyllm.checkpoint.types import AdapterMatrices, LoraAdapter
from pyllm.config.lora_settings import LoraConfig, LoraModule
from pyllm.core.executors.executor import Executor
from pyllm.core.faults.quarantine import RequestKey
from pyllm.errors import ConfigError, EngineDeadError, RequestError, WorkerDeadError
from pyllm.families.spec import ModelSpec
from pyllm.parameters.scheduling_params import MAX_NAME_CHARACTERS
from pyllm.wire.messages import Adapter

if TYPE_CHECKING:
    from pyllm.checkpoint.hub import Hub

HOLDER = "adapter"
MAX_ADAPTERS = 10_000
# Bytes of matrices in one call to the ranks, which compute no step meanwhile.
_PART_BYTES = 4 << 20

logger = logging.getLogger(__name__)


class AdapterSource(NamedTuple):
    """The place of adapters: the model that they are for, and where the hub's are kept."""

    spec: ModelSpec
    hub: "Hub"
    settings: LoraConfig

    def read(self, name: str, path: str) -> tuple[Adapter, LoraAdapter]:
        """Find an adapter, download it if need be, and read its description.

        Raises:
            ConfigError: it is missing, damaged, of another model, or of too large a rank.
        """
        from pyllm.checkpoint.adapters.adapter_files import find_lora, read_lora  # It imports all families.

        found = read_lora(find_lora(path, self.hub), self.spec)
        if found.rank > self.settings.max_lora_rank:
            raise ConfigError(
                f"adapter {path} has the rank {found.rank}, more than max_lora_rank {self.settings.max_lora_rank}: "
                "start the engine with a larger one"
            )
        return Adapter(name, path, found.digest, found.rank), found


class _Entry:
    """An adapter; `waiting` are the requests that are held until it `is_loaded`."""

    def __init__(self, number: int, adapter: Adapter, description: LoraAdapter, *, is_loaded: bool) -> None:
        self.number = number
        self.adapter = adapter
        self.description = description
        self.is_loaded = is_loaded
        self.is_closing = False  # It makes room for another one, once its requests have ended.
        self.last_used = 0
        self.requests: set[RequestKey] = set()  # with some that have ended
        self.waiting: list[RequestKey] = []


class ReadAdapter(NamedTuple):
    """An adapter that the ranks have loaded before the core began, by its number."""

    number: int
    adapter: Adapter
    description: LoraAdapter
    is_loaded: bool


class Adapters:
    """The adapters of one core; without a `source` there are none, and a request that names one is refused.

    `announce` is called after each change, `wake` when held requests may run, and `fail` to
    end a request whose adapter cannot be loaded.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        source: AdapterSource | None,
        found: Iterable[ReadAdapter] = (),
        *,
        announce: Callable[[], object],
        wake: Callable[[], object],
        fail: Callable[[int, int, str], object],
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._source = source
        self._settings = LoraConfig() if source is None else source.settings
        self._announce = announce
        self._wake = wake
        self._fail = fail
        self._by_key: dict[str, _Entry] = {}
        self._listed: dict[str, _Entry] = {}
        self._numbers = itertools.count(1)
        self._uses = itertools.count(1)
        self._changing = asyncio.Lock()
        self._pending: list[_Entry] = []  # to load, in order
        self._loading: asyncio.Task[None] | None = None
        for each in found:
            entry = _Entry(each.number, each.adapter, each.description, is_loaded=each.is_loaded)
            self._by_key[each.adapter.key] = entry
            if each.adapter.is_listed:
                self._listed[each.adapter.name] = entry
            self._numbers = itertools.count(each.number + 1)

    @property
    def listed(self) -> tuple[Adapter, ...] | None:
        """The adapters that requests may name; None if this core serves none at all."""
        return tuple(entry.adapter for entry in self._listed.values()) if self._settings.enable_lora else None

    @property
    def served(self) -> tuple[Adapter, ...]:
        """The listed adapters, and others that requests still use that have begun with them."""
        return tuple(
            msgspec.structs.replace(entry.adapter, is_listed=self._listed.get(entry.adapter.name) is entry)
            for entry in self._by_key.values()
        )

    def reports(self, counts: Mapping[int, tuple[int, int]]) -> list[dict[str, Any]]:
        """Each adapter with its running sequences and waiting requests, which the scheduler has counted by numbers."""
        reports = []
        for adapter, entry in zip(self.served, self._by_key.values(), strict=True):
            running, waiting = counts.get(entry.number, (0, 0))
            more = {"is_loaded": entry.is_loaded, "num_running": running, "num_waiting": waiting}
            reports.append(msgspec.structs.asdict(adapter) | more)
        return reports

    def find(self, text: str) -> tuple[str, int]:
        """The key and number of the adapter that a request names; an empty text has the number 0.

        Raises:
            RequestError: there is no such adapter.
        """
        if not text:
            return "", 0
        if not self._settings.enable_lora:
            raise RequestError(f"adapter {text!r:.200}: start the engine with enable_lora", "adapter")
        entry = self._listed.get(text) or self._by_key.get(text)
        if entry is None:
            known = ", ".join(self._listed) or "none"
            raise RequestError(f"adapter {text!r:.200} is not loaded; loaded: {known:.400}", "adapter")
        return entry.adapter.key, entry.number

    def admit(self, request: RequestKey, key: str) -> None:
        """Note a new request of the adapter `key`, and hold it until the ranks have the adapter."""
        if not key:
            return
        entry = self._by_key[key]
        entry.last_used = next(self._uses)
        if len(entry.requests) >= 2 * len(entry.waiting) + 64:
            self._forget_ended(entry)
        entry.requests.add(request)
        if not entry.is_loaded or entry.is_closing:
            self._scheduler.hold(*request, HOLDER)
            entry.waiting.append(request)
            if entry not in self._pending:
                self._pending.append(entry)  # `advance` begins it: no event loop may run where requests come from.

    async def load(self, name: str, path: str = "", *, in_place: bool = False) -> Adapter:
        """Add an adapter; without a `path`, one from `lora_folder` or `lora_repositories`. Returns it.

        With `in_place` it may replace one of the same name; running requests end on the old one.

        Raises:
            RequestError: it cannot be used; nothing else has changed.
        """
        self._check_name(name)
        async with self._changing:
            before = self._listed.get(name)
            if before is not None and not in_place:
                if path in {"", before.adapter.path}:
                    return before.adapter
                text = f"adapter {name!r} is loaded from {before.adapter.path}: unload it first, or load it in place"
                raise RequestError(text, "lora_name")
            if len(self._by_key) >= MAX_ADAPTERS:
                raise RequestError(f"there are {MAX_ADAPTERS} adapters already: unload some", "lora_name")
            path = path or await asyncio.to_thread(self._resolved, name)
            try:
                assert self._source is not None, "_check_name has refused it"
                adapter, description = await asyncio.to_thread(self._source.read, name, path)
            except ConfigError as error:
                raise RequestError(str(error), "lora_path") from None
            entry = self._by_key.get(adapter.key)
            if entry is None:
                entry = _Entry(next(self._numbers), adapter, description, is_loaded=False)
                await self._load_now(entry)
            entry.last_used = next(self._uses)
            self._by_key[adapter.key] = self._listed[name] = entry
        self._announce()
        return adapter

    def unload(self, name: str) -> None:
        """Remove an adapter's name. Its requests end as they began; its memory is free when another one needs it.

        Raises:
            RequestError: there is no adapter of this name.
        """
        self.find(name)
        if (entry := self._listed.pop(name, None)) is None:
            raise RequestError(f"give the adapter's name, not {name!r:.200}", "lora_name")
        entry.last_used = 0
        self._forget_ended(entry)
        if not entry.is_loaded and not entry.requests:
            del self._by_key[entry.adapter.key]
        self._announce()

    def advance(self) -> None:
        """Begin to load what requests wait for, if there may be room now; call it before each plan."""
        if self._pending and self._loading is None and self._executor.death is None:
            self._loading = asyncio.ensure_future(self._load_pending())

    async def restore(self) -> None:
        """Load again what live requests need, into new ranks, which have no adapter.

        Raises:
            WorkerDeadError: a rank has died.
        """
        for entry in list(self._by_key.values()):
            was_loaded, entry.is_loaded = entry.is_loaded, False
            if not was_loaded or not self._live(entry):
                continue
            try:
                await self._load_into_ranks(entry)
            except WorkerDeadError:
                raise
            except EngineDeadError as error:
                self._fail_all(entry, str(error))

    def _check_name(self, name: str) -> None:
        if not self._settings.enable_lora:
            raise RequestError("start the engine with enable_lora", "lora_name")
        if not name or len(name) > MAX_NAME_CHARACTERS or "@" in name or not name.isprintable():
            text = f"an adapter's name has 1 to {MAX_NAME_CHARACTERS} printable characters without @, not {name!r:.80}"
            raise RequestError(text, "lora_name")

    def _resolved(self, name: str) -> str:
        """The path of an adapter that is only named. Raises RequestError if no resolver has it."""
        folder = self._settings.lora_folder
        if folder and name not in {".", ".."} and "/" not in name:
            path = Path(folder) / name
            if path.exists():
                return str(path)
        owner = name.partition("/")[0]
        if {name, f"{owner}/*"} & {*self._settings.lora_repositories}:
            return name
        raise RequestError(f"there is no adapter {name!r:.200}", "lora_name")

    async def _load_pending(self) -> None:
        """Load what requests wait for, in order, as far as there is room; the next call goes on."""
        try:
            async with self._changing:
                while self._pending:
                    entry = self._pending[0]
                    if not entry.is_loaded:
                        if not await self._make_room():
                            return
                        try:
                            await self._load_into_ranks(entry)
                        except WorkerDeadError:
                            return  # `restore` comes, then this again.
                        except EngineDeadError as error:
                            self._fail_all(entry, str(error))
                    self._pending.remove(entry)
                    self._release(entry)
        finally:
            self._loading = None
            self._wake()

    async def _load_now(self, entry: _Entry) -> None:
        """Load an adapter for a caller. Raises RequestError."""
        if not await self._make_room():
            return  # It is loaded when a request needs it.
        try:
            await self._load_into_ranks(entry)
        except WorkerDeadError as error:
            raise RequestError(f"the workers died meanwhile: {error}; try again") from None
        except EngineDeadError as error:
            raise RequestError(f"the ranks cannot use it: {error}", "lora_path") from None

    async def _make_room(self) -> bool:
        """Free the host memory of one adapter if there are as many as fit; False: all have live requests.

        Then the least recently used one admits no more requests, so that there is room when its own have ended.
        """
        loaded = sorted(
            (entry for entry in self._by_key.values() if entry.is_loaded), key=lambda entry: entry.last_used
        )
        if len(loaded) < self._settings.num_on_host:
            return True
        victim = next((entry for entry in loaded if not self._live(entry)), None)
        if victim is None:
            loaded[0].is_closing = True
            return False
        victim.is_loaded = victim.is_closing = False
        if self._listed.get(victim.adapter.name) is not victim:
            del self._by_key[victim.adapter.key]
        try:
            await self._executor.collective("unload_adapter", victim.number)
        except WorkerDeadError:
            return False
        return True

    async def _load_into_ranks(self, entry: _Entry) -> None:
        await load_into_ranks(self._executor, entry.number, entry.description)
        entry.is_loaded = True

    def _release(self, entry: _Entry) -> None:
        waiting, entry.waiting = entry.waiting, []
        for request in waiting:
            if self._is_live(request):
                self._scheduler.release(*request, HOLDER)

    def _live(self, entry: _Entry) -> bool:
        """Whether requests of an adapter may have a row; those that wait for it to be loaded have none."""
        self._forget_ended(entry)
        return len(entry.requests) > len(entry.waiting)

    def _forget_ended(self, entry: _Entry) -> None:
        entry.requests = {request for request in entry.requests if self._is_live(request)}
        entry.waiting = [request for request in entry.waiting if request in entry.requests]

    def _is_live(self, request: RequestKey) -> bool:
        try:
            self._scheduler.explain(*request)
        except SchedulerError:
            return False
        return True

    def _fail_all(self, entry: _Entry, reason: str) -> None:
        self._forget_ended(entry)
        for request in entry.requests:
            self._fail(*request, f"adapter {entry.adapter.name} could not be loaded again: {reason}")
        entry.requests.clear()
        entry.waiting.clear()


async def load_into_ranks(executor: Executor, number: int, adapter: LoraAdapter) -> None:
    """Load an adapter into the host memory of all ranks, in parts, between which they compute steps.

    Raises:
        WorkerDeadError: a rank has died.
        EngineDeadError: a rank refused it: numbers are not finite, files have changed, or no layer takes a matrix.
    """
    found: set[str] = set()
    try:
        for part in _parts(adapter.matrices):
            encoded = msgspec.msgpack.encode(part)
            for names in await executor.collective("load_adapter", number, adapter.files, encoded):
                found.update(names)
        if missing := [each.entry.name for each in adapter.matrices if each.entry.name not in found]:
            listed = ", ".join(missing[:5])
            raise EngineDeadError(f"{len(missing)} matrices are of layers without adapters: {listed}")
    except EngineDeadError as error:
        if not isinstance(error, WorkerDeadError):
            await executor.collective("unload_adapter", number)
        raise


def _parts(matrices: Sequence[AdapterMatrices]) -> Iterator[list[AdapterMatrices]]:
    """The matrices in parts of at least `_PART_BYTES`, but for the last."""
    part: list[AdapterMatrices] = []
    for each in matrices:
        part.append(each)
        if sum(pair.down.num_bytes + pair.up.num_bytes for pair in part) >= _PART_BYTES:
            yield part
            part = []
    if part:
        yield part


async def read_adapters(
    executor: Executor, source: AdapterSource, modules: Sequence[LoraModule], kept: Sequence[Adapter] | None
) -> list[ReadAdapter]:
    """The adapters of a new core: those that the core before has served, else `modules`. Loads as many as fit.

    Raises:
        ConfigError: a module cannot be used. An adapter that was kept, and cannot be used now, is left out.
    """
    wanted = [Adapter(module.name, module.path, "") for module in modules] if kept is None else kept
    found: list[ReadAdapter] = []
    for before in wanted:
        try:
            adapter, description = await asyncio.to_thread(source.read, before.name, before.path)
            if before.digest not in {"", adapter.digest}:
                raise ConfigError(f"the files in {before.path} have changed")
            adapter = msgspec.structs.replace(adapter, is_listed=before.is_listed)
            number, is_loaded = len(found) + 1, len(found) < source.settings.num_on_host
            if is_loaded:
                await load_into_ranks(executor, number, description)
        except WorkerDeadError:
            raise
        except (ConfigError, EngineDeadError) as error:
            if kept is None:
                raise ConfigError(f"lora_modules: {before.name}: {error}") from None
            logger.error("adapter %s is not served any more: %s", before.name, error)
        else:
            found.append(ReadAdapter(number, adapter, description, is_loaded))
    return found
