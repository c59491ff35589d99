"""A rank's KV blocks and states on the host: their numbers, their memory, and those left by an earlier process.

Knows the settings that a block's content depends on; neither its bytes nor the plans that move them.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from pyllm_kernels import Kernels

from pyllm.checkpoint.cache import file_identity
from pyllm.config.process_config import WorkerConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.families.kv_layout import KVGroup, num_bare_blocks
from pyllm.families.state_layout import host_states, state_bytes
from pyllm.workers.devices.device import Device
from pyllm.workers.kv.host_states import HostStates
from pyllm.workers.kv.host_tier import HostTier
from pyllm.workers.kv.kv_cache import HostPool, KVCache, KVCacheShape, host_blocks_of_rank
from pyllm.workers.kv.state_cache import StateCache


class HostBlocks(NamedTuple):
    """`num_blocks` KV blocks and `num_states` states on the host.

    `tier`, `state_tier`: their memory, if it outlives this process; None if it belongs to this process.
    """

    num_blocks: int
    tier: HostTier | None
    num_states: int = 0
    state_tier: HostTier | None = None

    def inventory(self) -> bytes:
        """The blocks and states of an earlier process, see `HostTier.inventory`; none in memory of this process."""
        return b"".join(tier.inventory() for tier in (self.tier, self.state_tier) if tier is not None)

    def forget(self) -> None:
        """Make all current blocks and states invalid for later processes."""
        for tier in (self.tier, self.state_tier):
            if tier is not None:
                tier.forget()

    def make_pool(
        self, cache: KVCache, num_blocks: int, kernels: Kernels, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[HostPool, float]:
        """Make the pool; also returns the seconds of a swap, measured once while no block of the memory is in use."""
        pool = HostPool(cache, num_blocks, kernels, clock, tier=self.tier)
        return pool, _measured(self.tier, pool.time_swaps)

    def make_states(
        self,
        states: StateCache | None,
        device: Device,
        num_on_device: int,
        num_states: int,
        clock: Callable[[], float],
    ) -> tuple[HostStates, float]:
        """Make the memory of states, for `states` of this stage if it has some; also returns the seconds of a swap."""
        parts = [] if states is None else [part for layer in states.layers.values() for part in layer]
        host = HostStates(parts, device, num_on_device, num_states, self.state_tier, clock=clock)
        return host, _measured(self.state_tier, host.time_swaps)


def open_host_blocks(
    config: WorkerConfig,
    shape: KVCacheShape,
    groups: Sequence[KVGroup],
    arithmetic: str,
    *,
    descriptor: int | None,
    bytes_of_state: int = 0,
) -> HostBlocks:
    """Check that the blocks fit, and begin to verify blocks in `descriptor`'s memory if its model and settings match.

    Of a model with states, these have half of the memory, `bytes_of_state` each on this rank. `arithmetic` names
    the instruction set and kernels that the bytes depend on.

    Raises:
        ConfigError: not one block fits, or there is too little memory.
    """
    engine = config.engine
    ranks, size = num_ranks(engine.parallel), engine.cache.kv_offloading_size
    # The memory of a worker before this one is still in use.
    held = 0 if descriptor is None else os.fstat(descriptor).st_blocks * 512 * ranks
    spec, tp_size = config.checkpoint.spec, engine.parallel.tensor_parallel_size
    num_states = host_states(spec, tp_size, size)
    size -= num_states * tp_size * state_bytes(spec, tp_size, range(len(spec.layers)))
    num_blocks = host_blocks_of_rank(size, ranks, shape.block_bytes, held=held)
    if num_blocks and not shape.block_bytes:
        num_blocks = num_bare_blocks(engine.model.max_model_len or 1, engine.cache.block_size, num_states)
    if descriptor is None or not num_blocks:
        return HostBlocks(num_blocks, None, num_states)
    meaning = (
        (config.checkpoint.fingerprint, engine.model.dtype, engine.model.quantization, arithmetic),
        # The fingerprint covers only the beginnings of tensors, and the files may have changed since.
        [file_identity(file) for file in config.checkpoint.files],
        (config.rank, engine.parallel.tensor_parallel_size, engine.parallel.pipeline_parallel_size),
        (str(shape), [group.window for group in groups], num_states, bytes_of_state),
        (engine.cache.prefix_hash, engine.cache.prefix_hash_seed),
        engine.sparse,  # The keys and values of later layers depend on the blocks that earlier layers attend to.
    )
    identity = hashlib.blake2b(msgspec.json.encode(meaning), digest_size=32).digest()
    tier = HostTier(descriptor, identity, num_blocks, shape.block_shape, shape.dtype)
    if not num_states:
        return HostBlocks(num_blocks, tier)
    floats = (bytes_of_state // np.dtype(np.float32).itemsize,)
    return HostBlocks(
        num_blocks, tier, num_states, HostTier(descriptor, identity, num_states, floats, "float32", start=tier.end)
    )


def _measured(tier: HostTier | None, time_swaps: Callable[[], float]) -> float:
    """The seconds of a swap, of an earlier process if the memory is from it."""
    if tier is None:
        return time_swaps()
    tier.inventory()  # Wait for verification before anything is written.
    if (seconds := tier.swap_seconds) is None:
        seconds = tier.swap_seconds = time_swaps()
    return seconds
