"""An engine whose connector keeps blocks on a disk that fails: no wrong token, and no byte or descriptor left over."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.errors import ConfigError
from pyllm.kv_transfer import ConnectorContext
from pyllm.kv_transfer.store_lookup import StoreLookup
from pyllm.kv_transfer.store_transfer import StoreTransfer
from pyllm.kv_transfer.stores import DiskStore
from pyllm.wire.messages import FinishCode
from tests.core.raw_engine import Engine
from tests.core.remembering_executor import BLOCK_SIZE, RememberingExecutor
from tests.core.transferring_executor import TransferringExecutor
from tests.kv_transfer.stores.shared_disk import SharedDisk
from tests.kv_transfer.stores.simulated_disk import Faults

CONTEXT = ConnectorContext(namespace=bytes(32), block_size=BLOCK_SIZE, num_ranks=1, rank=0)
FOLDER, CAPACITY, LOCK_BYTES = Path("/kv"), 48 << 10, 8
MAX_TOKENS = 5
EXTRA = {"store": "unused:here", "load_timeout": 2.0, "lookup_timeout": 1.0, "staging_bytes": 1024}
NUM_ACTIONS = 2000  # of each fault: 12,000 together
Made = TypeVar("Made")

# What goes wrong, how often, and what share of reads gets stuck.
FAULTS = {
    "short": (Faults(short=0.3), 0.0),
    "flipped bit": (Faults(flip=0.05), 0.0),
    "ENOSPC": (Faults(full=0.3), 0.0),
    "EIO": (Faults(error=0.1), 0.0),
    "stuck": (Faults(), 0.05),
    "all": (Faults(short=0.1, flip=0.02, error=0.05, full=0.1, busy=0.1), 0.01),
}


class StoredEngine:
    """A core and a rank, each with a disk store of its own in one folder."""

    def __init__(self, disk: SharedDisk, num_blocks: int, depth: int) -> None:
        config = KVTransferConfig(kv_connector="StoreConnector", kv_connector_extra_config=EXTRA)
        self.disk = disk
        self._ranks: list[StoreTransfer] = []

        def make_rank() -> StoreTransfer:
            self._ranks.append(StoreTransfer(config, CONTEXT, self._open(), clock=lambda: self.engine.now))
            return self._ranks[-1]

        self._lookup = StoreLookup(config, CONTEXT, self._open(), clock=lambda: self.engine.now)
        self.executor = TransferringExecutor(make_rank, num_blocks)
        self.engine = Engine(
            self.executor,
            depth=depth,
            connector=self._lookup,
            max_saving_blocks=8,
            max_restarts=1000,
            kv_transfer_config={"kv_connector": "StoreConnector"},
        )

    async def start(self) -> None:
        await self.executor.collective("register_kv_caches", "")

    def die(self) -> None:
        """The rank ends, as its process was killed: it waits for nothing that is stuck."""
        self.disk.let_go()
        self.executor.kill("killed")

    def close(self) -> None:
        """End all threads and give up all files. Nothing gets stuck meanwhile."""
        stuck, self.disk.stuck = self.disk.stuck, 0.0
        self.disk.let_go()
        self.executor.close_transfers()
        self.engine.core.close()
        for half in (self._lookup._threads, *(rank._readers for rank in self._ranks)):
            half.shutdown(wait=True)
        self.disk.stuck = stuck

    def _open(self) -> DiskStore:
        return retried(lambda: DiskStore(FOLDER, CAPACITY, self.disk.open_files()))


def retried(make: Callable[[], Made]) -> Made:
    """As a supervisor does with a process that could not start."""
    while True:
        try:
            return make()
        except ConfigError:
            continue


async def expected(prompt: tuple[int, ...]) -> list[int]:
    """The answer of an engine without a connector."""
    engine = Engine(RememberingExecutor())
    engine.submit(1, list(prompt), max_tokens=MAX_TOKENS)
    await engine.run_dry()
    return engine.outputs()[1][0]


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_fault_of_the_disk_gives_a_wrong_token_or_leaks_a_byte(fault: str) -> None:
    """Requests of few prefixes, aborts, deaths of the rank and restarts of everything, on one folder."""
    chance = random.Random(fault)
    disk = SharedDisk(chance.randrange(1 << 32), *FAULTS[fault])
    answers: dict[tuple[int, ...], list[int]] = {}
    number = num_loaded = 0
    asked: dict[int, tuple[int, ...]] = {}

    async def begin() -> StoredEngine:
        started = StoredEngine(disk, chance.choice([24, 40]), chance.choice([1, 2]))
        await started.start()
        return started

    stored = await begin()
    for _ in range(NUM_ACTIONS):
        match chance.choices(("submit", "step", "abort", "die", "restart", "let go"), (20, 70, 3, 1, 0.5, 5))[0]:
            case "submit" if stored.engine.scheduler.stats()["num_requests"] < 6:
                number += 1
                first, second = (chance.randrange(3),), (chance.randrange(2),)
                asked[number] = first * chance.randrange(1, 30) + second * chance.randrange(1, 20)
                stored.engine.submit(number, list(asked[number]), max_tokens=MAX_TOKENS)
            case "step":
                await stored.engine.core.step()
            case "abort" if asked:
                stored.engine.scheduler.abort(0, chance.choice(list(asked)))
            case "die":
                stored.die()
            case "restart":
                num_loaded += await ended(stored, asked, answers)
                asked = {}
                stored = await begin()
            case "let go":
                disk.let_go()
                stored.engine.now += 1.0
    num_loaded += await ended(stored, asked, answers)
    assert num_loaded > 0
    assert disk.num_operations > NUM_ACTIONS
    kinds = [kind for kind in FAULTS if kind != "all"] if fault == "all" else [fault]
    assert all(disk.counted[kind] for kind in kinds), disk.counted


async def ended(
    stored: StoredEngine, asked: dict[int, tuple[int, ...]], answers: dict[tuple[int, ...], list[int]]
) -> int:
    """Let all requests end, compare them with what they should be, and give up the engine.

    Gives the tokens that were loaded.
    """
    await stored.engine.run_dry()
    outputs = stored.engine.outputs()
    for number, prompt in asked.items():
        if prompt not in answers:
            answers[prompt] = await expected(prompt)
        tokens, finish = outputs[number]
        assert finish in {FinishCode.LENGTH, FinishCode.ABORT}
        assert tokens == answers[prompt][: None if finish == FinishCode.LENGTH else len(tokens)]
    stats = stored.engine.core.stats()
    left = ("num_used_blocks", "num_saving_blocks", "num_requests", "num_loading", "num_held", "num_kv_loads")
    assert [stats[name] for name in left] == [0] * len(left)
    stored.close()
    disk = stored.disk
    assert [files.open_files for files in disk.opened] == [{}] * len(disk.opened)
    assert all(inode.holder is None for inode in disk.disk.names.values())
    assert disk.disk.peak_bytes <= CAPACITY + LOCK_BYTES
    return stats["num_kv_loaded_tokens"]
