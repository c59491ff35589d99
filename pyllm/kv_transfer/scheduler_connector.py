"""The scheduler's half of a KV connector: finds the tokens of a request that can be loaded, makes metadata for workers.

Runs in the core, on its event loop: no method may wait. Names are vLLM's `KVConnectorBase_V1`, but blocks are saved by
the hash of their contents, not by request. Knows neither the scheduler nor how a step is sent.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from pyllm.config.engine_settings import CacheConfig
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer.stores.store import Retention
from pyllm.kv_transfer.tier_figures import TierReport
from pyllm.wire.messages import TransferResults

# Seconds for which the core holds a request at most, until the connector reports the tokens it can load.
HOLD_SECONDS = 30.0
# Seconds that a load or save may take. Then the core restarts all ranks, as otherwise its blocks can never be reused.
TRANSFER_SECONDS = 120.0


class ConnectorContext(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's properties that both halves of a connector need.

    - `namespace`: 32 bytes, a digest of all that keys and values depend on besides the tokens: the model's weights,
      number formats, arithmetic and layout. Blocks of other namespaces cannot be used.
    - `weights`: a digest of all bytes of the model's files. The namespace contains it.
    - `windows`: for each group of layers, the number of tokens that a token reads, itself included; None: all.
    - `state_blocks`: the blocks that a state takes, of a model with states; 0: it has none. They are blocks of further
      groups after those of `windows`, one in each. A prefix can be used where these groups have its last block, too.
    - `rank`: the worker's rank; -1 in the scheduler's half.
    - `cache`: the engine's settings of its KV cache and of the stores on disk and in Redis.
    """

    namespace: bytes
    block_size: int
    num_ranks: int
    windows: tuple[int | None, ...] = (None,)
    state_blocks: int = 0
    rank: int = -1
    cache: CacheConfig = CacheConfig()
    weights: str = ""

    @property
    def of_worker(self) -> tuple[Any, ...]:
        """The arguments of a worker's `register_kv_caches`."""
        states = (self.state_blocks,) if self.state_blocks else ()
        return self.namespace.hex(), self.weights, *states


class TransferRequest(msgspec.Struct, frozen=True):
    """A request. `block_hashes` name its full blocks in order; each depends on all tokens up to the block's end."""

    request_id: str
    block_hashes: tuple[bytes, ...]


class BlockLoad(msgspec.Struct, frozen=True):
    """Whole blocks to load: `num_tokens` tokens of a request from `first_token` on.

    `blocks` has one tuple for each group of layers. Without a window it contains every block of these tokens; with a
    window only the last ones, which later tokens still read. Each further group has one block of the state after the
    last token. `step` reads them; None: the request waits for the load.
    """

    id: int
    request: TransferRequest
    first_token: int
    num_tokens: int
    blocks: tuple[tuple[int, ...], ...]
    step: int | None


class BlockSave(msgspec.Struct, frozen=True, array_like=True):
    """A full block of a committed step.

    `index` is its position among its request's blocks, `block` its number in the cache until the save ends.

    `retention` is the request's; `default`: that of the connector's settings. A block is listed again if it should be
    kept longer than before. A request with the retention `none` has no saves.
    """

    id: int
    block_hash: bytes
    group: int
    index: int
    block: int
    retention: Retention = "default"


class SchedulerOutput(msgspec.Struct, frozen=True):
    """The loads and saves that begin with a step, or between two steps. Each is listed once."""

    loads: Sequence[BlockLoad] = ()
    saves: Sequence[BlockSave] = ()


class SchedulerConnector:
    """The base of all connectors' halves in the core. Override the methods that raise NotImplementedError.

    A save or load is under way until every worker's half has named it in `get_finished`. Until then its blocks are
    kept, and no step writes them.
    """

    def __init__(self, config: KVTransferConfig, context: ConnectorContext) -> None:
        self.config = config
        self.context = context

    def get_num_new_matched_tokens(self, request: TransferRequest, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The number of tokens to load after the first `num_computed_tokens`, and whether the request waits for them.

        None: not known yet. The request is held, and this is called again.
        """
        raise NotImplementedError

    def update_state_after_alloc(
        self, request: TransferRequest, blocks: Sequence[Sequence[int]], num_external_tokens: int
    ) -> None:
        """Note that `num_external_tokens` tokens of a request will be loaded into these blocks, listed by group."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> bytes:
        """The metadata that every worker's half gets in `bind_connector_metadata`; empty: nothing is sent.

        It is called for each step, and between steps if there are loads or saves. Every rank must name all loads and
        saves in `get_finished`, also those that the metadata leaves out.
        """
        raise NotImplementedError

    def update_connector_output(self, connector_output: TransferResults) -> None:
        """Note the loads and saves that one rank has finished."""

    def request_finished(
        self, request: TransferRequest, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Note that a request has ended. Its blocks are free, so `block_ids` is empty: saves hold their own blocks.

        The first result means in vLLM that the blocks are freed later, and must be False.
        """
        return False, None

    def get_tier_stats(self) -> TierReport:
        """The figures that the tiers of a store have gained in this half since the last call; see `TierReport`."""
        return {}

    def shutdown(self) -> None:
        """Close files and connections, and end threads."""
