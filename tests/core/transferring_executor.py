"""The remembering executor with a connector's half: its blocks go to a store and come from there, on real threads."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from pyllm._rust import Plan
from pyllm.errors import ConfigError, EngineDeadError
from pyllm.kv_transfer import WorkerConnector
from pyllm.wire.messages import Sampled
from pyllm.workers.kv.rank_transfers import RankTransfers
from tests.core.remembering_executor import BLOCK_SIZE, RememberingExecutor


class TransferringExecutor(RememberingExecutor):
    """`make` gives the connector's half of each start. Blocks that nobody wrote hold -1."""

    def __init__(self, make: Callable[[], WorkerConnector], num_blocks: int = 64) -> None:
        self.make = make
        self._transfers: RankTransfers | None = None
        super().__init__(num_blocks)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connector's half."""
        return self._transfers is not None

    @property
    def block_bytes(self) -> int:
        return 4 * BLOCK_SIZE

    def begin(self) -> None:
        """Nothing is computed meanwhile."""

    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        for block, buffer in zip(blocks, into, strict=True):
            places = range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
            buffer[:] = np.array([self._cache.get(place, -1) for place in places], "<i4").tobytes()

    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        for block, buffer in zip(blocks, source, strict=True):
            self._cache.update(enumerate(np.frombuffer(buffer, "<i4").tolist(), block * BLOCK_SIZE))

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        if self._transfers is not None:
            self._transfers.begin(transfers)
        return super().submit(plan, transfers)

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if self.death is not None:
            raise self.death
        if method == "register_kv_caches":
            try:
                self._transfers = RankTransfers(self.make(), self)
            except ConfigError as error:
                raise EngineDeadError(f"worker 0 refused a call: {error}") from error
            return [None]
        if method != "transfer":
            return await super().collective(method, *args)
        await asyncio.sleep(0)
        if self.death is not None:
            raise self.death
        assert self._transfers is not None
        self._transfers.begin(*args)
        self._transfers.end(*args)
        return [msgspec.msgpack.encode(self._transfers.results())]

    def _forget(self) -> None:
        if self._transfers is not None:
            self._transfers.close()
            self._transfers = None
        super()._forget()

    def _sample(self, plan: Plan) -> Sampled:
        sampled = super()._sample(plan)
        if self._transfers is None:
            return sampled
        self._transfers.end(b"")
        return msgspec.structs.replace(sampled, transfers=self._transfers.results())

    def close_transfers(self) -> None:
        """End the threads."""
        self._forget()
