"""An engine whose blocks go to a store and come from there."""

import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer import ConnectorContext
from pyllm.kv_transfer.store_lookup import StoreLookup
from pyllm.kv_transfer.store_transfer import StoreTransfer
from pyllm.kv_transfer.stores.store import KVStore, Retention
from pyllm.wire.messages import FinishCode
from tests.core.raw_engine import Engine
from tests.core.remembering_executor import BLOCK_SIZE, RememberingExecutor
from tests.core.transferring_executor import TransferringExecutor
from tests.kv_transfer.faulty_store import FaultyStore

CONTEXT = ConnectorContext(namespace=bytes(32), block_size=BLOCK_SIZE, num_ranks=1, rank=0)
LOAD_TIMEOUT = 5.0


def transfer_config(retention: Retention = "default", **keys: Any) -> KVTransferConfig:
    extra = {"store": "unused:here", "load_timeout": LOAD_TIMEOUT, "lookup_timeout": 20.0, "staging_bytes": 1024}
    extra |= {"retention": retention}
    return KVTransferConfig(kv_connector="StoreConnector", kv_connector_extra_config=extra, **keys)


class WatchedThreads(ThreadPoolExecutor):
    """Threads whose calls can be waited for."""

    def __init__(self, num_threads: int, name: str) -> None:
        super().__init__(num_threads, name)
        self._num_threads = num_threads
        self.unfinished: set[Future[Any]] = set()

    @property
    def num_running(self) -> int:
        """Calls that a thread works on, or is stuck in."""
        return min(len(self.unfinished), self._num_threads)

    def submit(self, *args: Any, **keywords: Any) -> Future[Any]:
        future = super().submit(*args, **keywords)
        self.unfinished.add(future)
        future.add_done_callback(self.unfinished.discard)
        return future


class ThreadedEngine(Engine):
    """Its clock goes slowly; while its `pools` work on more than the `num_stuck` calls, no faster than real time."""

    pools: Sequence[WatchedThreads] = ()
    num_stuck: Callable[[], int] = staticmethod(lambda: 0)

    async def sleep(self, seconds: float) -> None:
        seconds = min(seconds, 0.001)
        if sum(pool.num_running for pool in self.pools) > self.num_stuck():
            calls = [call for pool in self.pools for call in pool.unfinished.copy()]
            if wait(calls, seconds, FIRST_COMPLETED).done:
                seconds = 0.0
        await super().sleep(seconds)


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
        pools = [WatchedThreads(1, "kv-lookup")]

        def make_rank() -> StoreTransfer:
            pools.append(WatchedThreads(2, "kv-load"))
            return StoreTransfer(config, CONTEXT, store, clock=lambda: self.engine.now, readers=pools[-1])

        self.executor = TransferringExecutor(make_rank, num_blocks)
        self.connector = half(config, CONTEXT, core_store or store, clock=lambda: self.engine.now, threads=pools[0])
        self.engine = ThreadedEngine(
            self.executor,
            depth=depth,
            connector=self.connector,
            max_saving_blocks=8,
            max_restarts=1000,
            kv_transfer_config={"kv_connector": "StoreConnector", **keys},
        )
        self.engine.pools = pools
        if isinstance(store, FaultyStore):
            self.engine.num_stuck = store.num_waiting

    async def run(self, request: int, prompt: list[int], **fields: Any) -> list[int]:
        await self.start()
        self.engine.submit(request, prompt, **fields)
        await self.engine.run_dry()
        tokens, _ = self.engine.outputs()[request]
        return tokens

    async def start(self) -> None:
        """Once, before the first step."""
        if not self.executor.is_connected:
            await self.executor.collective("register_kv_caches", "")

    def die(self) -> None:
        """The rank ends, as its process was killed."""
        self.executor.kill("killed")

    def close(self) -> None:
        self.executor.close_transfers()
        self.engine.core.close()


async def expected(prompt: list[int], **fields: Any) -> list[int]:
    """The answer of an engine without a connector."""
    engine = Engine(RememberingExecutor())
    engine.submit(1, prompt, **fields)
    await engine.run_dry()
    return engine.outputs()[1][0]


class StoredEngine(Protocol):
    """What `run_random_requests` needs: `Stored`, or one on a disk."""

    engine: Engine

    def die(self) -> None: ...
    def close(self) -> None: ...


async def run_random_requests(
    begin: Callable[[], Awaitable[StoredEngine]], let_go: Callable[[], object], chance: random.Random, num_actions: int
) -> int:
    """Requests of few prefixes, aborts, deaths of the rank and restarts of everything; gives the tokens loaded.

    Each request has the answer that it would have without a connector, and each engine is empty in the end. `let_go`
    has what is stuck go on.
    """
    answers: dict[tuple[int, ...], list[int]] = {}
    asked: dict[int, tuple[int, ...]] = {}
    number = num_loaded = 0
    stored = await begin()
    for _ in range(num_actions):
        match chance.choices(("submit", "step", "abort", "die", "restart", "let go"), (20, 70, 3, 1, 0.5, 5))[0]:
            case "submit" if stored.engine.scheduler.stats()["num_requests"] < 6:
                number += 1
                first, second = (chance.randrange(3),), (chance.randrange(2),)
                asked[number] = first * chance.randrange(1, 30) + second * chance.randrange(1, 20)
                stored.engine.submit(number, list(asked[number]), max_tokens=5)
            case "step":
                await stored.engine.core.step()
            case "abort" if asked:
                stored.engine.scheduler.abort(0, chance.choice(list(asked)))
            case "die":
                stored.die()
            case "restart":
                num_loaded += await _ended(stored, asked, answers)
                stored, asked = await begin(), {}
            case "let go":
                let_go()
                stored.engine.now += 1.0
    return num_loaded + await _ended(stored, asked, answers)


async def _ended(
    stored: StoredEngine, asked: dict[int, tuple[int, ...]], answers: dict[tuple[int, ...], list[int]]
) -> int:
    """Let all requests end, compare them, and close the engine; gives the tokens that were loaded."""
    await stored.engine.run_dry()
    outputs = stored.engine.outputs()
    for number, prompt in asked.items():
        if prompt not in answers:
            answers[prompt] = await expected(list(prompt), max_tokens=5)
        tokens, finish = outputs[number]
        assert finish in {FinishCode.LENGTH, FinishCode.ABORT}
        assert tokens == answers[prompt][: None if finish == FinishCode.LENGTH else len(tokens)]
    stats = stored.engine.core.stats()
    left = ("num_used_blocks", "num_saving_blocks", "num_requests", "num_loading", "num_held", "num_kv_loads")
    assert [stats[name] for name in left] == [0] * len(left)
    stored.close()
    return stats["num_kv_loaded_tokens"]
