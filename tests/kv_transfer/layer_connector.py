"""A connector that works layer by layer: it fills a step's blocks when the first layer waits for them, no earlier.

It keeps blocks in this process, for an engine in the same one, and records each layer's calls.
"""

from typing import Any

import msgspec

from pyllm.kv_transfer import (
    BlockSave,
    KVBlocks,
    KVConnector,
    SchedulerConnector,
    SchedulerOutput,
    TransferRequest,
    WorkerConnector,
)

BLOCKS: dict[bytes, bytes] = {}
CALLS: list[tuple[str, str]] = []  # the method's and the layer's name
SHAPES: set[tuple[int, ...]] = set()  # of keys and of values


class Metadata(msgspec.Struct, array_like=True):
    """For each load its id, and hashes and numbers of its blocks; the saves."""

    loads: list[tuple[int, list[bytes], list[int]]]
    saves: list[BlockSave]


class Offering(SchedulerConnector):
    """Offers known blocks at once, to be loaded by the step that reads them. Knows one group of layers."""

    def get_num_new_matched_tokens(self, request: TransferRequest, num_computed_tokens: int) -> tuple[int, bool]:
        start = num_computed_tokens // self.context.block_size
        missing = (index for index, name in enumerate(request.block_hashes[start:]) if name not in BLOCKS)
        return next(missing, len(request.block_hashes) - start) * self.context.block_size, False

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> bytes:
        loads = []
        for load in scheduler_output.loads:
            (blocks,) = load.blocks
            first = load.first_token // self.context.block_size
            loads.append((load.id, list(load.request.block_hashes[first : first + len(blocks)]), list(blocks)))
        return msgspec.msgpack.encode(Metadata(loads, list(scheduler_output.saves)))


class ByLayer(WorkerConnector):
    """Loads in `wait_for_layer_load` of the first layer, and saves before the step."""

    def register_kv_caches(self, kv_caches: KVBlocks) -> None:
        self._blocks = kv_caches
        self._told = Metadata([], [])
        self._saved: set[int] = set()
        self._loaded: set[int] = set()

    def bind_connector_metadata(self, connector_metadata: bytes) -> None:
        self._told = msgspec.msgpack.decode(connector_metadata, type=Metadata)

    def start_load_kv(self) -> None:
        for save in self._told.saves:
            buffer = bytearray(self._blocks.block_bytes)
            self._blocks.read([save.block], [memoryview(buffer)])
            BLOCKS[save.block_hash] = bytes(buffer)
            self._saved.add(save.id)

    def wait_for_layer_load(self, layer_name: str) -> None:
        CALLS.append(("wait_for_layer_load", layer_name))
        for number, names, blocks in self._told.loads if layer_name == "0" else ():
            self._blocks.write(blocks, [memoryview(BLOCKS[name]) for name in names])
            self._loaded.add(number)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any) -> None:
        CALLS.append(("save_kv_layer", layer_name))
        SHAPES.update(tuple(tensor.shape) for tensor in kv_layer)

    def clear_connector_metadata(self) -> None:
        self._told = Metadata([], [])

    def get_finished(self) -> tuple[set[int], set[int]]:
        ended = self._saved, self._loaded
        self._saved, self._loaded = set(), set()
        return ended

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()


class Plain(ByLayer):
    """The same without methods for single layers; it never gets a load."""

    wait_for_layer_load = WorkerConnector.wait_for_layer_load
    save_kv_layer = WorkerConnector.save_kv_layer


class Saving(Offering):
    """Offers no blocks."""

    def get_num_new_matched_tokens(self, request: TransferRequest, num_computed_tokens: int) -> tuple[int, bool]:
        del request, num_computed_tokens
        return 0, False


LayerConnector = KVConnector(Offering, ByLayer)
PlainConnector = KVConnector(Saving, Plain)


def forget() -> None:
    """Forget all blocks and calls."""
    BLOCKS.clear()
    CALLS.clear()
    SHAPES.clear()
