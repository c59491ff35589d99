"""A rank's half of the KV connector in its steps: told what to move, asked what has ended. Knows no scheduler."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyllm.kv_transfer import KVBlocks, WorkerConnector, works_by_layer
from pyllm.wire.messages import TransferResults
from pyllm.workers.transfers.kv_blocks import TrackedBlocks

if TYPE_CHECKING:
    from torch import Tensor

    from pyllm.workers.step.attention_batch import Ints
    from pyllm.workers.step.forward_context import ForwardContext


class RankTransfers:
    """Call `begin` once a step's blocks are swapped and copied, and `end` when it is computed.

    What `results` has given is not given again: the rank that answers a step asks for them with it, the others are
    asked by a call. `blocks_written` is called with what the connector has written, before a step or a layer reads it,
    on the thread of the steps; None where nobody keeps anything that such a block makes void.
    """

    def __init__(
        self,
        connector: WorkerConnector,
        blocks: KVBlocks,
        blocks_written: "Callable[[Ints], None] | None" = None,
    ) -> None:
        self._connector = connector
        self._tracked = None if blocks_written is None else TrackedBlocks(blocks, blocks_written)
        connector.register_kv_caches(self._tracked or blocks)

    @property
    def hook(self) -> "LayerHook | None":
        """What each layer is to call; None: the connector does nothing for single layers, and graphs stay on."""
        return LayerHook(self._connector, self.tell_written) if works_by_layer(self._connector) else None

    def begin(self, metadata: bytes) -> None:
        """Begin the loads and saves of a step's metadata.

        Loads that the step reads have ended when this returns, or end layer by layer.
        """
        if metadata:
            self._connector.bind_connector_metadata(metadata)
            self._connector.start_load_kv()
        # A load that began with an earlier step may have ended since: the core's answer to it is a step that reads it.
        self.tell_written()

    def tell_written(self) -> None:
        """Pass on which blocks the connector has written since the last call."""
        if self._tracked is not None:
            self._tracked.tell_written()

    def end(self, metadata: bytes) -> None:
        """The step with this metadata is computed."""
        if metadata:
            self._connector.wait_for_save()
            self._connector.clear_connector_metadata()

    def results(self) -> TransferResults | None:
        """What has ended since the last call; None if nothing has."""
        saves, loads = self._connector.get_finished()
        # After what has ended, so that no error of a load comes later than its end.
        errors = self._connector.get_block_ids_with_load_errors()
        stats = self._connector.get_kv_connector_stats()
        if not saves and not loads and not errors and stats is None:
            return None
        return TransferResults(tuple(sorted(saves)), tuple(sorted(loads)), tuple(sorted(errors)), stats)

    def close(self) -> None:
        """Give up what the connector holds outside."""
        self._connector.shutdown()


class LayerHook:
    """An `AttentionHook` that passes each layer on to the connector, by its number as the name.

    `tell_written` is called when the layer's blocks are there.
    """

    def __init__(self, connector: WorkerConnector, tell_written: Callable[[], None]) -> None:
        self._connector = connector
        self._tell_written = tell_written

    def before_attention(self, layer: int, context: "ForwardContext") -> None:
        """See `AttentionHook.before_attention`."""
        self._connector.wait_for_layer_load(str(layer))
        self._tell_written()

    def after_attention(self, layer: int, output: "Tensor", context: "ForwardContext") -> "Tensor":
        """See `AttentionHook.after_attention`."""
        cached = context.kv_cache.layers[layer]
        self._connector.save_kv_layer(str(layer), (cached.keys, cached.values), context.attention[cached.group])
        return output
