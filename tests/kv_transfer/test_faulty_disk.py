"""An engine whose connector keeps blocks on a disk that fails: no wrong token, and no byte or descriptor left over."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.errors import ConfigError
from pyllm.kv_transfer import ConnectorContext
from pyllm.kv_transfer.store_lookup import StoreLookup
from pyllm.kv_transfer.store_transfer import StoreTransfer
from pyllm.kv_transfer.stores.disk_store import DiskStore
from tests.core.raw_engine import Engine
from tests.core.remembering_executor import BLOCK_SIZE
from tests.core.stored_engine import run_random_requests
from tests.core.transferring_executor import TransferringExecutor
from tests.kv_transfer.stores.shared_disk import SharedDisk
from tests.kv_transfer.stores.simulated_disk import Faults

CONTEXT = ConnectorContext(namespace=bytes(32), block_size=BLOCK_SIZE, num_ranks=1, rank=0)
FOLDER, CAPACITY, LOCK_BYTES = Path("/kv"), 48 << 10, 8
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


class DiskEngine:
    """A core and a rank, each with a disk store of its own in one folder."""

    def __init__(self, disk: SharedDisk, num_blocks: int, depth: int) -> None:
        config = KVTransferConfig(kv_connector="StoreConnector", kv_connector_extra_config=EXTRA)
        self.disk = disk
        self._pools = [ThreadPoolExecutor(1, "kv-lookup")]

        def make_rank() -> StoreTransfer:
            store, readers = self._open(), ThreadPoolExecutor(2, "kv-load")
            self._rank_files = disk.opened[-1]
            self._pools.append(readers)
            return StoreTransfer(config, CONTEXT, store, clock=lambda: self.engine.now, readers=readers)

        self._lookup = StoreLookup(config, CONTEXT, self._open(), clock=lambda: self.engine.now, threads=self._pools[0])
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
        self._rank_files.end_waits()
        self.executor.kill("killed")

    def close(self) -> None:
        """End all threads and give up all files, of which none is left open or locked. Nothing gets stuck meanwhile."""
        stuck, self.disk.stuck = self.disk.stuck, 0.0
        self.disk.let_go()
        self.executor.close_transfers()
        self.engine.core.close()
        for pool in self._pools:
            pool.shutdown(wait=True)
        self.disk.stuck = stuck
        assert [files.open_files for files in self.disk.opened] == [{}] * len(self.disk.opened)
        assert all(inode.holder is None for inode in self.disk.disk.names.values())
        assert self.disk.disk.peak_bytes <= CAPACITY + LOCK_BYTES

    def _open(self) -> DiskStore:
        return retried(lambda: DiskStore(FOLDER, CAPACITY, self.disk.open_files()))


def retried(make: Callable[[], Made]) -> Made:
    """As a supervisor does with a process that could not start."""
    while True:
        try:
            return make()
        except ConfigError:
            continue


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_fault_of_the_disk_gives_a_wrong_token_or_leaks_a_byte(fault: str) -> None:
    chance = random.Random(fault)
    disk = SharedDisk(chance.randrange(1 << 32), *FAULTS[fault])

    async def begin() -> DiskEngine:
        started = DiskEngine(disk, chance.choice([24, 40]), chance.choice([1, 2]))
        await started.start()
        return started

    assert await run_random_requests(begin, disk.let_go, chance, NUM_ACTIONS) > 0
    assert disk.num_operations > NUM_ACTIONS
    kinds = [kind for kind in FAULTS if kind != "all"] if fault == "all" else [fault]
    assert all(disk.counted[kind] for kind in kinds), disk.counted
