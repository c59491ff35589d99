"""The worker's half of a KV connector: it copies blocks between the KV cache of one rank and the outside.

Runs on the thread that runs the steps: only `start_load_kv`, `wait_for_layer_load` and `wait_for_save` may wait, and
what waits delays the step. Knows no tensor: a rank's cache is its `KVBlocks`. Names are vLLM's `KVConnectorBase_V1`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer.scheduler_connector import ConnectorContext
from pyllm.wire.messages import TransferStats


class KVBlocks(Protocol):
    """The KV cache of a rank as numbered blocks of equal size. Its methods may be called from any thread.

    No step writes a block that is being saved, and no step reads or writes one that is being loaded.
    """

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: keys and values of all layers of one group on this rank."""

    def begin(self) -> None:
        """Order later copies behind all that was computed so far. Called on the thread that runs the steps."""

    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        """Copy blocks to the host. Returns when they are there."""

    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        """Copy blocks from the host. Returns when they are there."""


class WorkerConnector:
    """The base of all connectors' halves in workers. Override the methods that raise NotImplementedError."""

    def __init__(self, config: KVTransferConfig, context: ConnectorContext) -> None:
        self.config = config
        self.context = context

    def register_kv_caches(self, kv_caches: KVBlocks) -> None:
        """The rank's cache, before the first step."""
        raise NotImplementedError

    def bind_connector_metadata(self, connector_metadata: bytes) -> None:
        """What the scheduler's half tells with the next step."""
        raise NotImplementedError

    def start_load_kv(self) -> None:
        """Begin the loads and saves of the bound metadata.

        Return when the loads that the step reads have ended, or end them in `wait_for_layer_load`. It is called before
        the step is computed, and after blocks were swapped and copied for it.
        """
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        """The layer is about to read the cache. A connector that has this method, or the next one, runs without
        graphs."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any) -> None:
        """The layer has written its keys and values.

        `layer_name`: the layer's number in decimal. `kv_layer`: the keys and the values of the layer's whole cache,
        [num_blocks, block_size, kv_heads, head_dim] each. `attn_metadata`: `pyllm_kernels.AttentionMetadata`.
        """

    def wait_for_save(self) -> None:
        """The step is computed."""

    def clear_connector_metadata(self) -> None:
        """The step is over."""

    def get_finished(self) -> tuple[set[int], set[int]]:
        """The saves and the loads that have ended since the last call, by their ids, each named once.

        From then on this rank neither reads nor writes their blocks for them.
        """
        raise NotImplementedError

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks of loads that have not got their contents, since the last call; they are computed."""
        raise NotImplementedError

    def get_kv_connector_stats(self) -> TransferStats | None:
        """What was moved since the last call; None: nothing."""
        return None

    def shutdown(self) -> None:
        """Give up what it holds outside."""


def works_by_layer(connector: WorkerConnector) -> bool:
    """Whether a connector does something for each layer, so that a step must call it from within."""
    kind = type(connector)
    return (
        kind.wait_for_layer_load is not WorkerConnector.wait_for_layer_load
        or kind.save_kv_layer is not WorkerConnector.save_kv_layer
    )
