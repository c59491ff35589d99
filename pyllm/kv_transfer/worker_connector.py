"""The worker's half of a KV connector: it copies blocks between the KV cache of one rank and external storage.

Runs on the thread that runs the steps. Only `start_load_kv`, `wait_for_layer_load` and `wait_for_save` may wait, which
delays the step. Knows no tensor: a rank's cache is its `KVBlocks`. Names are vLLM's `KVConnectorBase_V1`.
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
        """Let later copies wait for all steps that were launched so far. Called on the thread that runs the steps."""

    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        """Copy blocks to the host. Returns when the copy is complete."""

    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        """Copy blocks from the host. Returns when the copy is complete."""


class WorkerConnector:
    """The base of all connectors' halves in workers. Override the methods that raise NotImplementedError."""

    def __init__(self, config: KVTransferConfig, context: ConnectorContext) -> None:
        self.config = config
        self.context = context

    def register_kv_caches(self, kv_caches: KVBlocks) -> None:
        """Take the rank's cache, before the first step."""
        raise NotImplementedError

    def bind_connector_metadata(self, connector_metadata: bytes) -> None:
        """Take the metadata that the scheduler's half made for the next step."""
        raise NotImplementedError

    def start_load_kv(self) -> None:
        """Begin the loads and saves of the bound metadata.

        The loads that the step reads must end before this returns, or in `wait_for_layer_load`. It is called after the
        step's swaps and copies of blocks, and before its forward pass.
        """
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for the layer's loads, before it reads the cache.

        If a connector overrides this method or `save_kv_layer`, steps run without graphs.
        """

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any) -> None:
        """Save the layer's keys and values, which it has written.

        `layer_name`: the layer's number in decimal. `kv_layer`: the keys and the values of the layer's whole cache,
        [num_blocks, block_size, kv_heads, head_dim] each; on a CPU blocks are apart, so `reshape` gives a copy.
        `attn_metadata`: `pyllm_kernels.AttentionMetadata`.
        """

    def wait_for_save(self) -> None:
        """Wait for saves, after the step."""

    def clear_connector_metadata(self) -> None:
        """Drop the metadata of the step."""

    def get_finished(self) -> tuple[set[int], set[int]]:
        """The ids of the saves and of the loads that have ended since the last call. Each is reported once.

        From then on this rank must neither read nor write their blocks.
        """
        raise NotImplementedError

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks that loads have failed to fill since the last call. Their tokens are computed."""
        raise NotImplementedError

    def get_kv_connector_stats(self) -> TransferStats | None:
        """The figures of loads and saves since the last call; None: there were none."""
        return None

    def shutdown(self) -> None:
        """Close files and connections, and end threads."""


def works_by_layer(connector: WorkerConnector) -> bool:
    """Whether a connector overrides a method that is called for each layer."""
    kind = type(connector)
    return (
        kind.wait_for_layer_load is not WorkerConnector.wait_for_layer_load
        or kind.save_kv_layer is not WorkerConnector.save_kv_layer
    )
