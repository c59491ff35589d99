"""A rank's KV blocks on the host: their number, their memory, and blocks left by an earlier process.

Knows the settings that a block's content depends on; neither its bytes nor the plans that move them.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from pyllm_kernels import Kernels

from pyllm.checkpoint.cache import file_identity
from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.families.kv_layout import KVGroup
from pyllm.workers.kv.host_tier import HostTier
from pyllm.workers.kv.kv_cache import HostPool, KVCache, KVCacheShape, host_blocks_of_rank


class HostBlocks(NamedTuple):
    """`num_blocks` KV blocks on the host.

    `tier`: their memory, if it outlives this process; None if it belongs to this process.
    """

    num_blocks: int
    tier: HostTier | None

    def inventory(self) -> bytes:
        """The blocks of an earlier process, see `HostTier.inventory`; empty if the memory belongs to this process."""
        return b"" if self.tier is None else self.tier.inventory()

    def forget(self) -> None:
        """Make all current blocks invalid for later processes."""
        if self.tier is not None:
            self.tier.forget()

    def make_pool(
        self, cache: KVCache, num_blocks: int, kernels: Kernels, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[HostPool, float]:
        """Make the pool; also returns the seconds of a swap, measured once while no block of the memory is in use."""
        pool = HostPool(cache, num_blocks, kernels, clock, tier=self.tier)
        if self.tier is None:
            return pool, pool.time_swaps()
        self.tier.inventory()  # Wait for verification before anything is written.
        if (seconds := self.tier.swap_seconds) is None:
            seconds = self.tier.swap_seconds = pool.time_swaps()
        return pool, seconds


def open_host_blocks(
    config: WorkerConfig, shape: KVCacheShape, groups: Sequence[KVGroup], arithmetic: str, descriptor: int | None
) -> HostBlocks:
    """Check that the blocks fit, and begin to verify blocks in `descriptor`'s memory if its model and settings match.

    `arithmetic` names the instruction set and kernels that the bytes depend on.

    Raises:
        ConfigError: not one block fits, or there is too little memory.
    """
    engine = config.engine
    ranks, size = num_ranks(engine.parallel), engine.cache.kv_offloading_size
    # The memory of a worker before this one is still in use.
    held = 0 if descriptor is None else os.fstat(descriptor).st_blocks * 512 * ranks
    num_blocks = host_blocks_of_rank(size, ranks, shape.block_bytes, held=held)
    if descriptor is None or not num_blocks:
        return HostBlocks(num_blocks, None)
    meaning = (
        (config.checkpoint.fingerprint, engine.model.dtype, engine.model.quantization, arithmetic),
        # The fingerprint covers only the beginnings of tensors, and the files may have changed since.
        [file_identity(file) for file in config.checkpoint.files],
        (config.rank, engine.parallel.tensor_parallel_size, engine.parallel.pipeline_parallel_size),
        (str(shape), [group.window for group in groups]),
        (engine.cache.prefix_hash, engine.cache.prefix_hash_seed),
        engine.sparse,  # The keys and values of later layers depend on the blocks that earlier layers attend to.
    )
    identity = hashlib.blake2b(msgspec.json.encode(meaning), digest_size=32).digest()
    return HostBlocks(num_blocks, HostTier(descriptor, identity, num_blocks, shape.block_shape, shape.dtype))
