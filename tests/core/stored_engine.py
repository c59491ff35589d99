"""An engine whose blocks go to a store and come from there."""

from typing import Any

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer import ConnectorContext
from pyllm.kv_transfer.store_lookup import StoreLookup
from pyllm.kv_transfer.store_transfer import StoreTransfer
from pyllm.kv_transfer.stores import KVStore, Retention
from tests.core.raw_engine import Engine
from tests.core.remembering_executor import BLOCK_SIZE, RememberingExecutor
from tests.core.transferring_executor import TransferringExecutor

CONTEXT = ConnectorContext(namespace=bytes(32), block_size=BLOCK_SIZE, num_ranks=1, rank=0)
LOAD_TIMEOUT = 5.0


def transfer_config(retention: Retention = "default", **keys: Any) -> KVTransferConfig:
    extra = {"store": "unused:here", "load_timeout": LOAD_TIMEOUT, "lookup_timeout": 20.0, "staging_bytes": 1024}
    extra |= {"retention": retention}
    return KVTransferConfig(kv_connector="StoreConnector", kv_connector_extra_config=extra, **keys)


class ThreadedEngine(Engine):
    """Beside real threads its clock goes slowly, so that they can do what takes them no time."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.001))


class Stored:
    """An engine with a store connector; `store` outlives it. Its half in the core has `core_store`, if one is given."""

    def __init__(
        self,
        store: KVStore,
        num_blocks: int = 64,
        depth: int = 2,
        retention: Retention = "default",
        half: type[StoreLookup] = StoreLookup,
        core_store: KVStore | None = None,
        **keys: Any,
    ) -> None:
        config = transfer_config(retention, **keys)
        self.executor = TransferringExecutor(
            lambda: StoreTransfer(config, CONTEXT, store, clock=lambda: self.engine.now), num_blocks
        )
        self.connector = half(config, CONTEXT, core_store or store, clock=lambda: self.engine.now)
        self.engine = ThreadedEngine(
            self.executor,
            depth=depth,
            connector=self.connector,
            max_saving_blocks=8,
            max_restarts=1000,
            kv_transfer_config={"kv_connector": "StoreConnector", **keys},
        )

    async def run(self, request: int, prompt: list[int], **fields: Any) -> list[int]:
        await self.start()
        self.engine.submit(request, prompt, **fields)
        await self.engine.run_dry()
        tokens, _ = self.engine.outputs()[request]
        return tokens

    async def start(self) -> None:
        """Once, before the first step."""
        if self.executor._transfers is None:
            await self.executor.collective("register_kv_caches", "")

    def close(self) -> None:
        self.executor.close_transfers()
        self.engine.core.close()


async def expected(prompt: list[int], **fields: Any) -> list[int]:
    """The answer of an engine without a connector."""
    engine = Engine(RememberingExecutor())
    engine.submit(1, prompt, **fields)
    await engine.run_dry()
    return engine.outputs()[1][0]
