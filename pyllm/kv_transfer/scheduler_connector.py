"""The scheduler's half of a KV connector: which tokens of a request can be loaded, and what workers are told of a step.

Runs in the core, on its event loop: no method may wait. Names are vLLM's `KVConnectorBase_V1`, but blocks are saved by
the hash of their contents, not by request. Knows neither the scheduler nor how a step is sent.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from pyllm.config.engine_settings import CacheConfig
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer.stores import Retention
from pyllm.kv_transfer.tier_figures import TierReport
from pyllm.wire.messages import TransferResults


class ConnectorContext(msgspec.Struct, frozen=True, kw_only=True):
    """What both halves of a connector know of the engine.

    - `namespace`: 32 bytes, a digest of all that keys and values depend on besides the tokens: the model's weights,
      number formats, arithmetic and layout. What other namespaces hold means nothing here.
    - `weights`: a digest of all bytes of the model's files, which is in the namespace.
    - `windows`: for each group of layers, how many tokens a token reads, itself included; None: all.
    - `rank`: of the worker; -1 in the scheduler's half.
    - `cache`: the engine's settings of its KV cache, with those of the stores on disk and in Redis.
    """

    namespace: bytes
    block_size: int
    num_ranks: int
    windows: tuple[int | None, ...] = (None,)
    rank: int = -1
    cache: CacheConfig = CacheConfig()
    weights: str = ""


class TransferRequest(msgspec.Struct, frozen=True):
    """A request: `block_hashes` name its full blocks, from the first on, by all tokens up to and with each."""

    request_id: str
    block_hashes: tuple[bytes, ...]


class BlockLoad(msgspec.Struct, frozen=True):
    """Blocks to load: the tokens of a request from `first_token` on, whole blocks.

    `blocks` has one tuple for each group of layers. Without a window it has every block of these tokens; with one only
    the last, which later tokens still read. `step` reads them; None: the request waits for the load.
    """

    id: int
    request: TransferRequest
    first_token: int
    num_tokens: int
    blocks: tuple[tuple[int, ...], ...]
    step: int | None


class BlockSave(msgspec.Struct, frozen=True, array_like=True):
    """A full block of a committed step.

    `index` is its place among its request's blocks, `block` its number in the cache until the save ends.

    `retention` is what its request asks for; `default`: what the connector's settings say. What is to be kept longer
    than before is listed again. A request with the retention `none` has no saves.
    """

    id: int
    block_hash: bytes
    group: int
    index: int
    block: int
    retention: Retention = "default"


class SchedulerOutput(msgspec.Struct, frozen=True):
    """What is new for workers with a step, or without one: loads and saves, each told once."""

    loads: Sequence[BlockLoad] = ()
    saves: Sequence[BlockSave] = ()


class SchedulerConnector:
    """The base of all connectors' halves in the core. Override the methods that raise NotImplementedError.

    A save and a load are under way until every worker's half has named it in `get_finished`: meanwhile its blocks are
    kept, and no step writes them.
    """

    def __init__(self, config: KVTransferConfig, context: ConnectorContext) -> None:
        self.config = config
        self.context = context

    def get_num_new_matched_tokens(self, request: TransferRequest, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens after the first `num_computed_tokens` can be loaded, and whether the request waits for them.

        None: not known yet. The request is kept from running, and this is called again.
        """
        raise NotImplementedError

    def update_state_after_alloc(
        self, request: TransferRequest, blocks: Sequence[Sequence[int]], num_external_tokens: int
    ) -> None:
        """So many tokens of a request will be loaded, into these blocks of each group."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> bytes:
        """What the workers' halves are told with a step, for `bind_connector_metadata`; empty: nothing.

        It is called for each step, and without one where there are loads or saves. Every rank must
        name in `get_finished` also the loads and saves that the metadata leaves out.
        """
        raise NotImplementedError

    def update_connector_output(self, connector_output: TransferResults) -> None:
        """What one rank has finished."""

    def request_finished(
        self, request: TransferRequest, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended. Its blocks are free, so `block_ids` is empty: what is to be saved is kept by its hash.

        vLLM's first result, whether the blocks are freed later, must be False.
        """
        return False, None

    def get_tier_stats(self) -> TierReport:
        """What tiers of a store have counted in this half since the last call; see `TierReport`."""
        return {}

    def shutdown(self) -> None:
        """Give up what it holds outside."""
