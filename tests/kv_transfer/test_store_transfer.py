"""A rank's loads from a store that hangs, and saves whose blocks cannot be copied."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer import BlockSave, ConnectorContext
from pyllm.kv_transfer.store_lookup import StoreLoad, StoreMetadata
from pyllm.kv_transfer.store_settings import block_key
from pyllm.kv_transfer.store_transfer import MAX_LOADS, StoreTransfer
from tests.kv_transfer.dict_store import DictStore
from tests.kv_transfer.fake_blocks import FakeBlocks
from tests.kv_transfer.gated_store import GatedStore

BLOCK_BYTES = 16
CONTEXT = ConnectorContext(namespace=bytes(32), block_size=4, num_ranks=1, rank=0)
CONFIG = KVTransferConfig(
    kv_connector="StoreConnector",
    kv_connector_extra_config={"io_threads": 1, "load_timeout": 3.0, "staging_bytes": 1024},
)


def begin(transfer: StoreTransfer, loads: Sequence[int]) -> None:
    """Loads of one block each, which has the load's number."""
    told = tuple(StoreLoad(number, (bytes(32),), (0,), (number,), False) for number in loads)
    transfer.bind_connector_metadata(msgspec.msgpack.encode(StoreMetadata(told)))
    transfer.start_load_kv()
    transfer.clear_connector_metadata()


def test_loads_that_do_not_return_are_bounded_and_those_given_up_before_they_begin_are_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, cache, now = GatedStore("stuck", "load"), FakeBlocks(1002, BLOCK_BYTES), 0.0
    store.save([block_key(CONTEXT.namespace, bytes(32), 0, 0)], [memoryview(bytes(BLOCK_BYTES))])
    readers = ThreadPoolExecutor(1)
    transfer = StoreTransfer(CONFIG, CONTEXT, store, clock=lambda: now, readers=readers)
    transfer.register_kv_caches(cache)
    begin(transfer, range(MAX_LOADS + 1))
    store.has_begun.wait()
    assert transfer.get_finished() == (set(), {MAX_LOADS})
    assert transfer.get_block_ids_with_load_errors() == {MAX_LOADS}
    now = 3.0
    assert transfer.get_finished() == (set(), set(range(MAX_LOADS)))
    assert f"{MAX_LOADS} loads of KV blocks have not ended in 3 s" in caplog.text
    assert transfer.get_block_ids_with_load_errors() == set(range(MAX_LOADS))
    begin(transfer, [1000])
    assert transfer.get_finished() == (set(), {1000}), "nobody waits for the others, but their calls are there"
    store.gate.set()
    readers.submit(bool).result()  # comes after them
    assert (store.num_calls, cache.written) == (1, [])
    begin(transfer, [1001])
    readers.submit(bool).result()
    assert transfer.get_finished() == (set(), {1001})
    assert transfer.get_block_ids_with_load_errors() == {1000}
    assert (store.num_calls, cache.written) == (2, [1001])
    transfer.shutdown()


def test_blocks_that_cannot_be_copied_count_as_unsaved() -> None:
    transfer = StoreTransfer(CONFIG, CONTEXT, DictStore("uncopied"))
    transfer.register_kv_caches(FakeBlocks(3, BLOCK_BYTES, broken=2))
    saves = tuple(BlockSave(block, bytes([block]) * 32, 0, block, block) for block in (1, 2))
    transfer.bind_connector_metadata(msgspec.msgpack.encode(StoreMetadata(saves=saves)))
    transfer.start_load_kv()
    saved: set[int] = set()
    while len(saved) < len(saves):
        saved |= transfer.get_finished()[0]
    stats = transfer.get_kv_connector_stats()
    transfer.shutdown()
    assert stats is not None
    assert (stats.num_unsaved_blocks, stats.saved_bytes) == (2, 0)
