"""The models of one server: which one a request gets, which are loaded, and which are unloaded to make room.

The supervisor loads what is wanted and says how far it is; everything here runs on one event loop.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from pyllm.client.core_connection import Condition
from pyllm.client.cores import CoreReport
from pyllm.config.catalogue_settings import CatalogueEntry, check_aliases
from pyllm.config.process_config import ApiConfig, CatalogueApiConfig, CatalogueNews, ModelNews
from pyllm.errors import ConfigError, DeadlineError, EngineDeadError, PyllmError, RequestError
from pyllm.frontend.catalogue.aliases import Aliases
from pyllm.frontend.catalogue.eviction import Resident, choose_leavers
from pyllm.frontend.catalogue.model_service import ModelService
from pyllm.frontend.http.failure import QueueFullError, UnknownModelError
from pyllm.frontend.observability.http_counts import HttpCounts
from pyllm.frontend.requests.model_tags import same_names
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.frontend.requests.server_credentials import ServerCredentials
from pyllm.frontend.shared.local_state import LocalState
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.wire.heartbeat import SILENCE
from pyllm.wire.supervision_messages import CatalogueChoices

# Requests that may wait for one model by default.
LEAST_QUEUE = 256
# Seconds for which a model that has failed is not tried again.
RETRY = 5.0

logger = logging.getLogger(__name__)

OpenService = Callable[[ApiConfig, LocalState], Awaitable[ModelService]]


class ModelFailedError(EngineDeadError):
    """A model that cannot be loaded; it may be, later."""


class CatalogueModel:
    """One model as this process knows it. `service` is there while requests can be answered."""

    def __init__(self, entry: CatalogueEntry) -> None:
        self.entry = entry
        self.service: ModelService | None = None
        self.news = ModelNews(name=entry.name)
        self.shared: LocalState | None = None
        self.is_leaving = False
        self.wish: int | None = None  # the number of the wish that it be loaded
        self.num_uses = 0
        self.num_waiting = 0
        self.num_loads = 0
        self.num_failures = 0
        self.last_used = 0.0
        self.keep_seconds: float | None = entry.ttl  # without a request; None: as long as there is room
        self.wanted_at: float | None = None
        self.ready_at = 0.0
        self.load_seconds = 0.0  # the last time
        self.reason = ""  # why it failed the last time
        self.failed_at: float | None = None
        self.opening: asyncio.Task[None] | None = None
        self.leaving: asyncio.Task[None] | None = None
        self.unused = asyncio.Event()
        self.unused.set()

    @property
    def name(self) -> str:
        """Its name in requests and answers."""
        return self.entry.name

    @property
    def stage(self) -> str:
        """`loaded`, `loading` with all that comes before, `unloading`, `failed` or `unloaded`."""
        if self.is_leaving:
            return "unloading"
        if self.service is not None:
            return "loaded"
        if self.wish is not None:
            return "loading"
        if self.news.stage in {"reading", "waiting", "loading", "loaded", "unloading"}:
            return "unloading"
        return "failed" if self.reason else "unloaded"

    @property
    def awaits_memory(self) -> bool:
        """Whether it is loaded as soon as there is room."""
        return self.news.stage == "waiting" and self.news.wish == self.wish

    def may_be_used_by(self, context: RequestContext) -> bool:
        """Whether the tenant of a request may use it; admins may use every model."""
        return not self.entry.tenants or context.role == "admin" or context.tenant in self.entry.tenants


class Catalogue:
    """All models of a server. `want` tells the supervisor which are to be loaded; `open_service` connects to one.

    `follow` takes the supervisor's news. `tick` must be called regularly. `clock` is in seconds.
    """

    def __init__(
        self,
        config: CatalogueApiConfig,
        credentials: ServerCredentials,
        want: Callable[[CatalogueChoices], None],
        open_service: OpenService,
        *,
        parent_silence: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = config.server
        self.download_dir = config.download_dir
        self.credentials = credentials
        self.draining = False
        self.reading = asyncio.Lock()  # of files of models that are not loaded
        self.http = HttpCounts()
        self.models = {entry.name: CatalogueModel(entry) for entry in config.entries}
        self.on_opened: Callable[[ModelService], None] = lambda service: None
        self._config = config
        self._aliases = Aliases(config.aliases)
        pinned = {entry.name: 0 for entry in config.entries if entry.pinned}
        for name, wish in (pinned if config.last_wish < 0 else config.wanted).items():
            self.models[name].wish = wish
        self._last_wish = max(config.last_wish, 0)
        most = config.server.max_num_queued_reqs
        self._max_waiting = LEAST_QUEUE if most is None else most
        self._tell = want
        self._open_service = open_service
        self._parent_silence = parent_silence
        self._clock = clock
        self._changed: asyncio.Future[None] | None = None
        self._state: SharedState | None = None
        if pinned and config.last_wish < 0:
            self._choose()

    @property
    def aliases(self) -> Mapping[str, Mapping[str, float]]:
        """All aliases with their models' shares."""
        return self._aliases.shares

    @property
    def services(self) -> list[ModelService]:
        """The services of all loaded models."""
        return [model.service for model in self.models.values() if model.service is not None]

    def cores(self) -> list[CoreReport]:
        """The cores of all loaded models."""
        return [core for service in self.services for core in service.state.client.cores]

    def condition(self) -> Condition:
        """Whether requests should come here, and why not; a model that is not loaded does not count."""
        if self.draining:
            return Condition(False, reason="the server is shutting down")
        if (silence := self._parent_silence()) > SILENCE:
            return Condition(False, reason=f"the server's supervisor has given no sign of life for {silence:.1f} s")
        stalled = [service.state.condition() for service in self.services]
        return next((condition for condition in stalled if condition.stalled), Condition(True))

    def known_name(self, name: str) -> str:
        """The name of a model, an alias or an adapter that a name with or without Ollama's tag means."""
        return next((same for same in same_names(name) if self._is_known(same)), name)

    def _is_known(self, name: str) -> bool:
        adapters = (adapter for service in self.services for adapter in service.state.models.adapters)
        return name in self.models or name in self._aliases.shares or any(each.name == name for each in adapters)

    def find(self, name: str | None, context: RequestContext) -> CatalogueModel:
        """The model that a request names: by its own name, an alias, or a LoRA adapter. Without a name the first one.

        Raises:
            UnknownModelError: there is none, or not for this tenant, which looks the same.
        """
        allowed = {each.name: each for each in self.models.values() if each.may_be_used_by(context)}
        if name is None and allowed:
            return next(iter(allowed.values()))
        if name in allowed:
            return allowed[name]
        if name in self._aliases.shares and (chosen := self._aliases.deal(name, allowed)) is not None:
            return allowed[chosen]
        for model in allowed.values():
            if model.service is not None and any(each.name == name for each in model.service.state.models.adapters):
                return model
        aliases = [alias for alias, shares in self._aliases.shares.items() if allowed.keys() & shares.keys()]
        raise UnknownModelError(name or "", [*allowed, *aliases])

    def find_loaded(self, context: RequestContext) -> CatalogueModel:
        """The first loaded model, for requests that name none and have no body.

        Raises:
            RequestError: none is loaded.
        """
        for model in self.models.values():
            if model.service is not None and not model.is_leaving and model.may_be_used_by(context):
                return model
        raise RequestError("No model is loaded; name one in the query, such as ?model=NAME.", "model")

    async def acquire(self, model: CatalogueModel, patience: float | None = None) -> ModelService:
        """Wait until a model is loaded, and use it until `release`.

        Raises:
            DeadlineError: it was not loaded within `patience` seconds.
            EngineDeadError: it cannot be loaded, or the server is shutting down.
            QueueFullError: too many requests wait for it already.
        """
        service = await self._ready(model, patience)
        model.num_uses += 1
        model.unused.clear()
        return service

    def release(self, model: CatalogueModel, keep: float | None = None) -> None:
        """Use a model no longer; it stays `keep` seconds, or as the catalogue says."""
        model.num_uses -= 1
        self.keep(model, keep)
        if not model.num_uses:
            model.unused.set()
            self.tick()

    @asynccontextmanager
    async def use(self, model: CatalogueModel, patience: float | None = None) -> AsyncGenerator[ModelService]:
        """The service of a model for the time of one request. Raises as `acquire`."""
        service = await self.acquire(model, patience)
        try:
            yield service
        finally:
            self.release(model)

    def is_open(self, model: CatalogueModel) -> bool:
        """Whether a request need not wait."""
        return model.service is not None and not model.is_leaving and not self.draining

    async def load(self, model: CatalogueModel, patience: float | None = None) -> None:
        """Load a model, and wait for that. Raises as `acquire`."""
        await self.acquire(model, patience)
        self.release(model)

    async def unload(self, model: CatalogueModel) -> None:
        """Unload a model once its requests have ended, and wait for that. A pinned one, too, until its next request."""
        if model.service is not None and not model.is_leaving:
            self._leave(model)
        elif model.service is None and not model.num_waiting:
            self._drop(model)
        if model.leaving is not None:
            await asyncio.wait({model.leaving})
        while model.stage == "unloading" and not self.draining:
            await self._change(None)

    def keep(self, model: CatalogueModel, seconds: float | None) -> None:
        """Unload a model this many seconds after its last request, from now on; None: as the catalogue says."""
        model.keep_seconds = model.entry.ttl if seconds is None else seconds
        model.last_used = self._clock()

    def seconds_left(self, model: CatalogueModel) -> float | None:
        """Seconds for which an idle model stays if no request comes; None: as long as there is room."""
        keep = model.keep_seconds
        return None if keep is None else max(0.0, model.last_used + keep - self._clock())

    def set_alias(self, alias: str, shares: Mapping[str, float]) -> None:
        """Set an alias, or remove it without shares; requests that come from now on follow it.

        Raises:
            RequestError: it is a model's name, or names one that does not exist.
        """
        try:
            if shares:
                check_aliases({alias: dict(shares)}, self.models)
        except ConfigError as error:
            raise RequestError(str(error), "alias") from None
        self._aliases.replace(alias, shares)
        self._choose()

    def follow(self, news: CatalogueNews) -> None:
        """Take the supervisor's news: connect to models that load, and fail the requests for those that failed."""
        with contextlib.suppress(ConfigError):  # Its reader has logged it.
            self.credentials.replace(news.credentials)
        for each in news.models:
            model = self.models[each.name]
            model.news = each
            if each.wish != model.wish:
                continue
            if each.stage == "failed":
                self._fail(model, each.reason)
            elif each.stage in {"loading", "loaded"} and model.service is None and model.opening is None:
                model.opening = asyncio.create_task(self._open(model))
        self._notify()
        self.tick()

    def tick(self) -> None:
        """Unload models whose time is over, and those whose memory another one waits for."""
        now = self._clock()
        for model in self.models.values():
            keep = model.keep_seconds
            if keep is not None and self._may_leave(model) and self._is_idle(model) and now - model.last_used >= keep:
                self._leave(model)
        waiting = [model for model in self._wanted() if model.awaits_memory and not self.draining]
        for model in waiting:
            if not model.num_waiting and not model.entry.pinned:
                self._drop(model)  # Its requests have left.
        if (first := next((model for model in waiting if model.wish is not None), None)) is not None:
            self._make_room(first, now)

    def beat(self) -> None:
        """Do the regular work of each loaded model, twice a second."""
        for service in self.services:
            service.beat()
        self.tick()

    async def drain(self, grace: float) -> None:
        """Refuse new requests; give running ones `grace` seconds to finish, then end them with an error."""
        self.draining = True
        self._notify()
        await asyncio.gather(*(service.state.drain(grace) for service in self.services))

    def close(self) -> None:
        """Disconnect from all models."""
        for model in self.models.values():
            for task in (model.opening, model.leaving):
                if task is not None:
                    task.cancel()
        for service in self.services:
            service.close()

    async def _ready(self, model: CatalogueModel, patience: float | None) -> ModelService:
        start, failures = self._clock(), model.num_failures
        if model.failed_at is not None and model.wish is None and start - model.failed_at < RETRY:
            raise _failed(model)
        if 0 < self._max_waiting <= model.num_waiting and not self.is_open(model):
            text = f"{model.num_waiting} requests wait for the model {model.name!r} already (--max-num-queued-reqs)."
            raise QueueFullError(text, RETRY)
        model.num_waiting += 1
        try:
            while not self.is_open(model):
                if self.draining:
                    raise EngineDeadError("the server is shutting down and takes no new requests")
                if model.num_failures > failures:
                    raise _failed(model)
                self._want(model)
                left = None if patience is None else start + patience - self._clock()
                if left is not None and left <= 0:
                    raise DeadlineError(f"The request timed out after {patience:g} s, before its model was loaded.")
                await self._change(left)
        finally:
            model.num_waiting -= 1
        assert model.service is not None
        return model.service

    def _wanted(self) -> list[CatalogueModel]:
        """The models that are wanted, in the order of the wishes."""
        wanted = [model for model in self.models.values() if model.wish is not None]
        return sorted(wanted, key=lambda model: model.wish or 0)

    def _want(self, model: CatalogueModel) -> None:
        if model.wish is None and not model.is_leaving:
            self._last_wish += 1
            model.wish = self._last_wish
            model.wanted_at = self._clock()
            self._choose()

    def _drop(self, model: CatalogueModel) -> None:
        """Want a model no longer."""
        if model.wish is not None:
            model.wish = None
            self._choose()
        if model.opening is not None and model.opening is not asyncio.current_task():
            model.opening.cancel()

    def _choose(self) -> None:
        wanted = {model.name: model.wish for model in self._wanted() if model.wish is not None}
        self._tell(CatalogueChoices(wanted=wanted, aliases=self._aliases.shares))

    async def _change(self, patience: float | None) -> None:
        """Wait for the next change of any model, at most `patience` seconds."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._changed}, timeout=patience)

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    async def _open(self, model: CatalogueModel) -> None:
        config = model.news.api
        assert config is not None
        try:
            service = await self._open_service(config, self._shared_of(model, config))
        except PyllmError as error:
            self._fail(model, str(error))
        except Exception as error:
            logger.exception("the model %s", model.name)
            self._fail(model, f"{type(error).__name__}: {error}")
        else:
            now = self._clock()
            model.service, model.reason, model.failed_at = service, "", None
            model.keep_seconds = model.entry.ttl
            model.num_loads += 1
            model.ready_at = model.last_used = now
            model.load_seconds = 0.0 if model.wanted_at is None else now - model.wanted_at
            self.on_opened(service)
        finally:
            model.opening = None
            self._notify()

    def _shared_of(self, model: CatalogueModel, config: ApiConfig) -> LocalState:
        """The state of a model's requests, which outlives its unloading; all models share accounts and records."""
        if model.shared is None:
            state = SharedState(config.shared, beside=self._state)
            self._state = self._state or state
            model.shared = LocalState(state)
        return model.shared

    def _fail(self, model: CatalogueModel, reason: str) -> None:
        model.reason, model.failed_at = reason, self._clock()
        model.num_failures += 1
        if model.service is not None:
            model.service.state.client.give_up(EngineDeadError(reason))
            model.service.close()
            model.service = None
        self._drop(model)
        self._notify()

    def _may_leave(self, model: CatalogueModel) -> bool:
        return model.service is not None and not model.is_leaving and not model.entry.pinned

    def _is_idle(self, model: CatalogueModel) -> bool:
        is_asked = model.num_uses or model.num_waiting
        return not is_asked and model.service is not None and model.service.state.is_idle

    def _make_room(self, waiting: CatalogueModel, now: float) -> None:
        """Unload what the first waiting model needs, unless enough others leave already."""
        holding = [each for each in self.models.values() if each.news.stage in {"loading", "loaded", "unloading"}]
        pinned = [each for each in holding if each.entry.pinned]
        config, need = self._config, waiting.news.num_bytes
        fixed = sum(each.news.num_bytes for each in pinned)
        if fixed + need > config.memory_budget or (0 < config.max_loaded_models <= len(pinned)):
            self._fail(waiting, f"it takes {need / 1e9:.2f} GB, and the pinned models leave too little room for it")
            return
        stays = [each for each in holding if not each.is_leaving and each.wish is not None]
        over = sum(each.news.num_bytes for each in stays) + need - config.memory_budget
        most = config.max_loaded_models
        places = len(stays) + 1 - most if most else 0
        # A model stays as long as its loading took, so that switching costs half of the time at most.
        residents = [
            Resident(
                each.name,
                each.news.num_bytes,
                each.last_used,
                is_idle=self._is_idle(each),
                may_drain=now - each.ready_at >= each.load_seconds,
            )
            for each in stays
            if self._may_leave(each)
        ]
        for name in choose_leavers(residents, over, places) if over > 0 or places > 0 else ():
            self._leave(self.models[name])

    def _leave(self, model: CatalogueModel) -> None:
        model.is_leaving = True
        model.leaving = asyncio.create_task(self._unload(model))

    async def _unload(self, model: CatalogueModel) -> None:
        """Wait for the end of a model's requests, and unload it; requests that come meanwhile wait for its return."""
        try:
            await model.unused.wait()
            if model.service is not None:
                await model.service.state.idle()
            if model.service is not None:
                model.service.close()
                model.service = None
            self._drop(model)
        finally:
            model.is_leaving, model.leaving = False, None
            self._notify()


def _failed(model: CatalogueModel) -> ModelFailedError:
    return ModelFailedError(f"The model {model.name!r} cannot be loaded: {model.reason}")
