"""The models that requests may name: the server's own, and the LoRA adapters of its cores, which may be found by name.

Loads nothing itself: cores do. Knows no API.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from pyllm.client.client import EngineClient
from pyllm.errors import DeadlineError, EngineDeadError, RequestError
from pyllm.frontend.http.failure import UnknownModelError
from pyllm.frontend.requests.model_tags import same_names
from pyllm.frontend.requests.request_context import RequestContext
from pyllm.wire.messages import Adapter

# Seconds for which a name stays unknown: clients may repeat it without a cost.
UNKNOWN_SECONDS = 5.0
MAX_UNKNOWN = 1000
# Names that cores look for at the same time.
MAX_SEARCHES = 8

logger = logging.getLogger(__name__)


class ServedModels:
    """The first of `names` is in answers, the others are its aliases. `clock` is in seconds."""

    def __init__(
        self,
        client: EngineClient,
        names: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        max_unknown: int = MAX_UNKNOWN,
    ) -> None:
        self.names = tuple(names)
        self._client = client
        self._clock = clock
        self._max_unknown = max_unknown
        self._searches: dict[str, asyncio.Task[Adapter | None]] = {}
        self._room = asyncio.Semaphore(MAX_SEARCHES)
        self._unknown: dict[str, float] = {}  # names, and when they may be looked for again

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters, which may be named as models are."""
        return self._client.served_adapters or ()

    async def choose(self, context: RequestContext, name: str | None) -> None:
        """Note the model or adapter that a request names; without a name it is the model.

        Raises:
            UnknownModelError: there is none of this name.
            DeadlineError: its adapter was not loaded in the request's time.
            EngineDeadError: no core can be asked for it.
        """
        name = context.chosen_model or name
        is_model = name is None or any(same in self.names for same in same_names(name))
        adapter = None if name is None or is_model else await self._find(name, context)
        context.model_name = self.names[0] if adapter is None else adapter.name
        context.adapter = "" if adapter is None else adapter.key

    async def _find(self, name: str, context: RequestContext) -> Adapter:
        names = same_names(name)
        for same in names:
            if (adapter := self._client.find_adapter(same)) is not None:
                return adapter
        for same in dict.fromkeys(names[:2]):
            if (adapter := await self._search(same, context)) is not None:
                return adapter
        raise UnknownModelError(name, [*self.names, *(each.name for each in self.adapters)])

    async def _search(self, name: str, context: RequestContext) -> Adapter | None:
        """Wait for the one search for a name; it goes on without the requests that asked for it."""
        if self._client.served_adapters is None or self._clock() < self._unknown.get(name, 0.0):
            return None
        search = self._searches.get(name)
        if search is None:
            search = self._searches[name] = asyncio.ensure_future(self._load(name))
            search.add_done_callback(partial(self._searched, name))
        timeout = context.timeout
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - context.arrival))
        await asyncio.wait({search}, timeout=left)
        if not search.done():
            raise DeadlineError(f"The request timed out after {timeout:g} s, before its adapter was loaded.")
        return search.result()

    def _searched(self, name: str, search: "asyncio.Task[Adapter | None]") -> None:
        del self._searches[name]
        if not search.cancelled():
            search.exception()  # Perhaps no request waits for it any more.

    async def _load(self, name: str) -> Adapter | None:
        try:
            async with self._room:
                return await self._client.load_adapter(name)
        except RequestError as error:
            # Another API process may have loaded it: the cores' lists come before their answers.
            if (adapter := self._client.find_adapter(name)) is not None:
                return adapter
            logger.info("there is no adapter %r: %s", name[:200], error)
            self._forget_oldest()
            self._unknown[name] = self._clock() + UNKNOWN_SECONDS
            return None
        except TimeoutError:
            raise EngineDeadError(f"the adapter {name!r:.200} was not loaded in time") from None

    def _forget_oldest(self) -> None:
        now = self._clock()
        self._unknown = {name: until for name, until in self._unknown.items() if now < until}
        if len(self._unknown) >= self._max_unknown:
            del self._unknown[next(iter(self._unknown))]
