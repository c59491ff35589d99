"""Calls the worker's half of the KV connector around each step, and collects its results. Knows no scheduler."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from pyllm.kv_transfer import KVBlocks, WorkerConnector, works_by_layer
from pyllm.wire.messages import TransferResults
from pyllm.workers.kv.kv_blocks import TrackedBlocks

if TYPE_CHECKING:
    from pyllm_kernels import AttentionMetadata
    from pyllm_kernels.tensors import Tensor

    from pyllm.workers.kv.kv_cache import CachedLayer
    from pyllm.workers.step.attention_batch import Ints

_encode = msgspec.msgpack.Encoder().encode
_RESULTS = msgspec.msgpack.Decoder(TransferResults)

logger = logging.getLogger(__name__)


class RankTransfers:
    """The transfers of a rank. Call `begin` once a step's blocks are swapped and copied, and `end` when it is computed.

    A connector that raises is not called again, and `results` reports the error from then on.

    `blocks_written` is called with the blocks that the connector has written, on the thread of the steps, before a step
    or a layer reads them. None: written blocks are not tracked.
    """

    def __init__(
        self,
        connector: WorkerConnector,
        blocks: KVBlocks,
        blocks_written: "Callable[[Ints], None] | None" = None,
    ) -> None:
        self._connector = connector
        self._failure = ""
        self._tracked = None if blocks_written is None else TrackedBlocks(blocks, blocks_written)
        connector.register_kv_caches(self._tracked or blocks)

    @property
    def hook(self) -> "LayerHook | None":
        """The hook that each layer calls; None if the connector does not work by layer, so that graphs can be used."""
        return LayerHook(self) if works_by_layer(self._connector) else None

    def begin(self, metadata: bytes) -> None:
        """Begin the loads and saves of a step's metadata.

        Loads of blocks that the step reads have ended when this returns, or end layer by layer.
        """
        if metadata and not self._failure:
            with self._guarded():
                self._connector.bind_connector_metadata(metadata)
                self._connector.start_load_kv()
        # A load that began with an earlier step may have ended since, and this step may read its blocks.
        self.tell_written()

    def tell_written(self) -> None:
        """Pass the blocks that the connector has written since the last call to `blocks_written`."""
        if self._tracked is not None:
            self._tracked.tell_written()

    def end(self, metadata: bytes) -> None:
        """Finish the saves of a step's metadata, after the step is computed."""
        if metadata and not self._failure:
            with self._guarded():
                self._connector.wait_for_save()
                self._connector.clear_connector_metadata()

    def results(self) -> TransferResults | None:
        """The loads and saves that have ended since the last call, with statistics; None if there are none."""
        if not self._failure:
            with self._guarded():
                return self._new_results()
        return TransferResults(failure=self._failure)

    def close(self) -> None:
        """Shut the connector down."""
        with self._guarded():
            self._connector.shutdown()

    def load_layer(self, layer: int) -> None:
        """Wait for a layer's loads, before it reads the cache."""
        if not self._failure:
            with self._guarded():
                self._connector.wait_for_layer_load(str(layer))
        self.tell_written()

    def save_layer(self, layer: int, kv_layer: "tuple[Tensor, Tensor]", attention: "AttentionMetadata") -> None:
        """Save a layer, after it has written its keys and values."""
        if not self._failure:
            with self._guarded():
                self._connector.save_kv_layer(str(layer), kv_layer, attention)

    def _new_results(self) -> TransferResults | None:
        saves, loads = self._connector.get_finished()
        # In this order, so that no error of a load comes later than its end.
        errors = self._connector.get_block_ids_with_load_errors()
        stats = self._connector.get_kv_connector_stats()
        if not saves and not loads and not errors and stats is None:
            return None
        results = TransferResults(tuple(sorted(saves)), tuple(sorted(loads)), tuple(sorted(errors)), stats)
        return _RESULTS.decode(_encode(results))  # Validate the output of other packages' connectors.

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Log an exception of the connector and store it as the failure."""
        try:
            yield
        except Exception as error:
            logger.exception("the KV connector failed in this rank")
            self._failure = f"{type(error).__name__}: {error}"


class LayerHook:
    """An `AttentionHook` that calls the connector for each layer; the layer's name is its index."""

    def __init__(self, transfers: RankTransfers) -> None:
        self._transfers = transfers

    def before_attention(self, layer: int) -> None:
        """See `AttentionHook.before_attention`."""
        self._transfers.load_layer(layer)

    def after_attention(
        self, layer: int, output: "Tensor", cached: "CachedLayer", metadata: "AttentionMetadata"
    ) -> "Tensor":
        """See `AttentionHook.after_attention`."""
        self._transfers.save_layer(layer, (cached.keys, cached.values), metadata)
        return output
