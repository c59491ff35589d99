"""A rank's KV blocks and states, on the device and on the host: their numbers, their memory, and the moves of a plan.

Knows the plan's lists of blocks; neither the model that reads the blocks nor the scheduler.
"""

import time
from collections.abc import Callable

from pyllm_kernels import Kernels
from pyllm_kernels.ops.blocks import copy_blocks

from pyllm.config.process_config import WorkerConfig
from pyllm.errors import ProtocolError
from pyllm.families.kv_layout import KVGroup
from pyllm.families.state_layout import state_bytes
from pyllm.workers.devices.device import Device
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.kv.host_blocks import HostBlocks, open_host_blocks
from pyllm.workers.kv.host_states import HostStates
from pyllm.workers.kv.kv_cache import HostPool, KVCache, KVCacheShape
from pyllm.workers.kv.page_prefaulter import PagePrefaulter
from pyllm.workers.kv.state_cache import StateCache
from pyllm.workers.step.batch import Batch


class KVMemory:
    """The KV cache and the host pool. Call `open_host`, then `allocate`, then `move_blocks` for each step.

    `layers` are those of this rank's pipeline stage, and `groups` those with attention.
    """

    def __init__(
        self,
        config: WorkerConfig,
        shape: KVCacheShape,
        groups: tuple[KVGroup, ...],
        kernels: Kernels,
        device: Device,
        *,
        layers: range,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._device = device
        self._clock = clock
        self.groups = groups
        self._layers = layers
        ranks = config.engine.parallel.tensor_parallel_size
        self.state_bytes = state_bytes(config.checkpoint.spec, ranks, layers)
        """Bytes of one state in the layers of this stage; 0 if none keeps one."""
        self.shape = shape
        self.swap_seconds = 0.0
        """Measured seconds to move one block to the host and back; 0 without a host pool."""
        self.state_swap_seconds = 0.0
        """The same for one state."""
        self._host_blocks = HostBlocks(0, None)
        self._cache: KVCache | None = None
        self._host_pool: HostPool | None = None
        self._prefaulter: PagePrefaulter | None = None
        self._has_paused = False
        self._states: StateCache | None = None
        self._host_states: HostStates | None = None

    @property
    def cache(self) -> KVCache:
        """The KV cache.

        Raises:
            ProtocolError: `allocate` was not called yet.
        """
        if self._cache is None:
            raise ProtocolError("a step or call came before the KV cache was allocated")
        return self._cache

    @property
    def states(self) -> StateCache | None:
        """The states; None if no layer of this stage has one, or before `allocate`."""
        return self._states

    def open_host(self, arithmetic: str, descriptor: int | None) -> None:
        """Check that the host has room, and begin to verify the blocks in `descriptor`, see `open_host_blocks`."""
        self._host_blocks = open_host_blocks(
            self._config, self.shape, self.groups, arithmetic, descriptor=descriptor, bytes_of_state=self.state_bytes
        )

    def num_host_blocks(self) -> int:
        """The number of KV blocks that this rank may keep in host memory, its share of `kv_offloading_size`."""
        return self._host_blocks.num_blocks

    def num_host_states(self) -> int:
        """The number of states in host memory, equal on all ranks."""
        return self._host_blocks.num_states

    def state_blocks(self) -> int:
        """The blocks of this rank that have as many bytes as a state."""
        return -(-self.state_bytes // max(1, self.shape.block_bytes))

    def host_inventory(self) -> bytes:
        """The blocks of an earlier process in the host pool, see `HostTier.inventory`."""
        return self._host_blocks.inventory()

    def forget_host_blocks(self) -> None:
        """Make all current blocks of the host pool invalid for later processes."""
        self._host_blocks.forget()

    def staging_bytes(self) -> int:
        """The device memory that swaps will need."""
        from pyllm.workers.kv.swap_stream import staging_bytes

        return staging_bytes(self._host_blocks.num_blocks, self.shape.block_bytes)

    def temporary_cache(self, num_blocks: int) -> KVCache:
        """A cache for steps before `allocate`."""
        return KVCache(self.shape, num_blocks, self._device, self.groups)

    def temporary_states(self) -> StateCache | None:
        """Room for one state, for steps before `allocate`."""
        return self._make_states(1)

    def _make_states(self, num_states: int) -> StateCache | None:
        if not self.state_bytes or not num_states:
            return None
        spec, ranks = self._config.checkpoint.spec, self._config.engine.parallel.tensor_parallel_size
        return StateCache(spec, ranks, self._layers, num_states, self._device)

    def allocate(self, num_blocks: int, num_host_blocks: int, num_states: int = 0, num_host_states: int = 0) -> None:
        """Allocate the KV cache, the states and the host pool, or nothing, and time a few swaps.

        Raises:
            ProtocolError: it was called before.
        """
        if self._cache is not None:
            raise ProtocolError(f"the KV cache of {self._cache.num_blocks} blocks is allocated already")
        try:
            self._allocate(num_blocks, num_host_blocks, num_states, num_host_states)
        except BaseException:
            self.release()
            raise

    def _allocate(self, num_blocks: int, num_host_blocks: int, num_states: int, num_host_states: int) -> None:
        self._cache = KVCache(self.shape, num_blocks, self._device, self.groups)
        self._states = self._make_states(num_states)
        if num_host_blocks:
            self._host_pool, self.swap_seconds = self._host_blocks.make_pool(
                self._cache, num_host_blocks, self._kernels, self._clock
            )
        if num_host_states:
            self._host_states, self.state_swap_seconds = self._host_blocks.make_states(
                self._states, self._device, num_states, num_host_states, self._clock
            )
        if isinstance(self._device, HostDevice) and self.shape.num_layers:
            self._prefaulter = PagePrefaulter(self._cache.memory)
            if self._has_paused:
                self._prefaulter.use(0)

    @property
    def is_allocated(self) -> bool:
        """Whether there is a KV cache."""
        return self._cache is not None

    def release(self) -> None:
        """Free the KV cache, the states and the host pool; `allocate` makes them again.

        Memory of the host that outlives this process stays.
        """
        self._device.synchronize()  # Blocks may be on their way to the host.
        if self._prefaulter is not None:
            self._prefaulter.join()
        self._cache = self._states = self._prefaulter = self._host_pool = self._host_states = None

    def prefault(self) -> None:
        """Prefault the first pages of a CPU's cache in a pause, so that no start waits for it; else a step does so.

        If it comes before `allocate`, that prefaults them.
        """
        self._has_paused = True
        if self._prefaulter is not None:
            self._prefaulter.use(0)

    def move_blocks(self, batch: Batch) -> None:
        """Swap and copy the KV blocks and states that the plan names."""
        cache = self.cache
        if self._prefaulter is not None and len(batch.host.table_blocks):
            self._prefaulter.use(int(batch.host.table_blocks.max()) + 1)
        if len(batch.host.swaps):
            if self._host_pool is None:
                raise ProtocolError("the plan swaps blocks, but there is no host pool: kv_offloading_size is 0")
            swaps = batch.host.swaps.reshape(-1, 3), batch.device.swaps.reshape(-1, 3)
            self._host_pool.swap(*swaps, batch.host.swap_names)
        if len(batch.host.state_swaps):
            if self._host_states is None:
                raise ProtocolError("the plan swaps states, but none are on the host: kv_offloading_size is 0")
            self._host_states.swap(batch.host.state_swaps.reshape(-1, 3), batch.host.state_swap_names)
        if len(batch.host.block_copies):
            copies = batch.device.block_copies.reshape(-1, 2)
            for layer in cache.memory:
                self._kernels[copy_blocks](layer[0], layer[-1], copies)

    def statistics(self) -> dict[str, int]:
        """Bytes of the KV cache, of the states, and of both on the host."""
        num_blocks = 0 if self._cache is None else self._cache.num_blocks
        num_host_blocks = 0 if self._host_pool is None else self._host_pool.num_blocks
        size = self.shape.block_bytes
        num_states = 0 if self._states is None else self._states.num_states
        num_host_states = 0 if self._host_states is None else self._host_states.num_states
        return {
            "kv_cache_bytes": num_blocks * size,
            "state_bytes": num_states * self.state_bytes,
            "host_kv_cache_bytes": num_host_blocks * size,
            "host_state_bytes": num_host_states * self.state_bytes,
        }
