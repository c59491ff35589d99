"""The KV blocks in host memory that have outlived their workers: new ranks list them for the scheduler.

A block counts if every rank has it. Knows neither the contents of blocks nor the cause of the restart.
"""

import logging
from collections.abc import Awaitable, Sequence

from pyllm._rust import Scheduler
from pyllm.core.executors.executor import Executor
from pyllm.errors import EngineDeadError
from pyllm.wire.plan_layout import SWAP_NAME_SIZE

_RECORD_SIZE = 4 + SWAP_NAME_SIZE  # the number of a block, and its name

logger = logging.getLogger(__name__)


class HostInventory:
    """The inventory for a scheduler that knows no host blocks yet, or none since `lose_device`."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._num_resets = 0
        self._num_told = 0  # resets that the ranks know of

    async def restore(self) -> None:
        """Tell the scheduler which old blocks the ranks have. They must have allocated, and not run a step yet.

        Raises:
            EngineDeadError: a rank is gone.
        """
        if not self._scheduler.stats()["num_host_blocks"]:
            return
        while True:
            if self._num_told < self._num_resets:
                await self._tell_reset()
            num_resets = self._num_resets
            blocks = await whole_blocks(self._executor)
            if num_resets == self._num_resets:  # otherwise a reset has made the blocks void
                self._scheduler.restore_host_blocks(blocks)
                return

    def reset(self) -> Awaitable[None] | None:
        """Void the blocks in host memory after a reset of the prefix cache, so that no restart finds them.

        The reset holds from this call on; await the result until the ranks know of it. If a rank is gone, the ranks of
        the next start are told before they list their blocks. None: there is no host pool.
        """
        if not self._scheduler.stats()["num_host_blocks"]:
            return None
        self._num_resets += 1
        return self._reset()

    async def _reset(self) -> None:
        try:
            await self._tell_reset()
        except EngineDeadError as error:
            logger.warning("the next workers forget the blocks in host memory, as these are gone: %s", error)

    async def _tell_reset(self) -> None:
        number = self._num_resets
        await self._executor.collective("forget_host_blocks")
        self._num_told = max(self._num_told, number)


async def whole_blocks(executor: Executor) -> bytes:
    """The old blocks that all ranks have, for `Scheduler.restore_host_blocks`.

    Raises:
        EngineDeadError: a rank is gone.
    """
    inventories: Sequence[bytes] = await executor.collective("host_inventory")
    common = set.intersection(*map(_records, inventories))
    if common:
        logger.info("%d KV blocks in host memory have outlived the workers", len(common))
    return b"".join(sorted(common))


def _records(inventory: bytes) -> set[bytes]:
    return {inventory[at : at + _RECORD_SIZE] for at in range(0, len(inventory), _RECORD_SIZE)}
