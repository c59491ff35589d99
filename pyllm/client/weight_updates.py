"""Changes of the weights on all cores of a client: loaded on each, checked, then switched on all.

Knows no requests, and reads no files: cores do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyllm.client.cores import Core, Cores
from pyllm.errors import EngineDeadError, RequestError

# Seconds for a core to load weights, or for requests that have begun to end before a switch.
UPDATE_TIMEOUT = 3600.0
# Seconds in which a core that was lost in the middle must have a successor.
SUCCESSOR_TIMEOUT = 600.0
_LOOK = 0.05  # seconds between two looks at a core without a connection

# Calls a method of one core: the core, the method, its arguments, and the seconds that it may take.
Call = Callable[[Core, str, tuple[Any, ...], float], Awaitable[Any]]

# The method of a core that loads them, with its arguments.
WeightSource = tuple[str, tuple[Any, ...]]

logger = logging.getLogger(__name__)


class WeightUpdates:
    """One change at a time. `has_waiting` tells whether requests wait that have begun with a core's weights."""

    def __init__(self, cores: Cores, call: Call, has_waiting: Callable[[Core], bool]) -> None:
        self._cores = cores
        self._has_waiting = has_waiting
        self._call = call
        self._changing = asyncio.Lock()

    async def update(self, source: WeightSource, mode: str) -> str:
        """Change the weights of every core; returns their version.

        Raises:
            RequestError: a core cannot use them; all cores go on with the weights before.
            EngineDeadError: no core is ready, or one was lost and had no successor in time.
            TimeoutError: it took longer than an hour.
        """
        async with self._changing:
            cores = [core for core in self._cores.all() if core.is_open] or [self._cores.any_ready]
            version = await self._load(cores, source)
            results = await asyncio.gather(
                *(self._switch(core, source, version, mode) for core in cores), return_exceptions=True
            )
            errors = [error for error in results if isinstance(error, BaseException)]
            if errors and len(errors) < len(cores):
                logger.error("some cores have other weights than the others, and get no new requests: %s", errors[0])
            if errors:
                raise errors[0]
            return version

    async def _load(self, cores: Sequence[Core], source: WeightSource) -> str:
        """Load the weights on one core after the other, so that each sees the memory that is left."""
        versions: dict[int, str] = {}
        try:
            for core in cores:
                versions[core.index] = str(await self._call(core, *source, UPDATE_TIMEOUT))
            if len(set(versions.values())) > 1:
                raise RequestError("the cores have read different weights")
        except BaseException:
            # The one that failed has dropped them by itself, or has died.
            loaded = [core for core in cores if core.index in versions]
            drops = (self._call(core, "drop_weights", (), UPDATE_TIMEOUT) for core in loaded)
            await asyncio.gather(*drops, return_exceptions=True)
            raise
        return next(iter(versions.values()))

    async def _switch(self, core: Core, source: WeightSource, version: str, mode: str) -> None:
        """Switch a core; if it is lost meanwhile, its successor, which may have begun with either version."""
        try:
            await self._call(core, "switch_weights", (version, mode), UPDATE_TIMEOUT)
        except EngineDeadError as loss:
            logger.warning("core %d was lost while its weights were changed: %s", core.index, loss)
            async with asyncio.timeout(SUCCESSOR_TIMEOUT):
                while not await self._catch_up(core, source, version, mode):  # noqa: ASYNC110 - a connection has no event
                    await asyncio.sleep(_LOOK)

    async def _catch_up(self, core: Core, source: WeightSource, version: str, mode: str) -> bool:
        """Give the successor of a lost core the version that the others have. False: it is not there yet."""
        if self._cores.get(core.index) is not core or core.failure is not None:
            raise EngineDeadError(f"core {core.index} has left")
        if not core.is_open or self._has_waiting(core):
            return False
        if core.connection.model.weights_version != version:
            try:
                await self._call(core, *source, UPDATE_TIMEOUT)
                await self._call(core, "switch_weights", (version, mode), UPDATE_TIMEOUT)
            except EngineDeadError:
                return False
        return True
