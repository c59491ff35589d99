"""A rank's half of a connector: what it writes is told on the thread of the steps, before anything reads it."""

import threading

import pytest

from pyllm.config.engine_settings import CacheConfig
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.kv_transfer import ConnectorContext, KVBlocks, WorkerConnector
from pyllm.workers.kv.rank_transfers import RankTransfers
from pyllm.workers.step.attention_batch import Ints
from tests.kv_transfer.fake_blocks import FakeBlocks

CONTEXT = ConnectorContext(namespace=bytes(32), block_size=4, num_ranks=1, windows=(None,), rank=0, cache=CacheConfig())


class Filling(WorkerConnector):
    """Writes the blocks that its metadata names."""

    blocks: KVBlocks
    metadata = b""

    def register_kv_caches(self, kv_caches: KVBlocks) -> None:
        self.blocks = kv_caches

    def bind_connector_metadata(self, connector_metadata: bytes) -> None:
        self.metadata = connector_metadata

    def start_load_kv(self) -> None:
        self.blocks.begin()
        self.fill(*self.metadata)

    def fill(self, *blocks: int) -> None:
        self.blocks.write(blocks, [memoryview(b"x")] * len(blocks))


class FillingByLayer(Filling):
    """Writes them when the layer of that number asks."""

    def start_load_kv(self) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        if int(layer_name) in self.metadata:
            self.fill(int(layer_name))


class Written:
    """The calls of `blocks_written`, which must come on one thread."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self._thread = threading.get_ident()

    def __call__(self, blocks: Ints) -> None:
        assert threading.get_ident() == self._thread
        self.calls.append(blocks.tolist())


def started(kind: type[Filling], written: Written | None) -> tuple[Filling, RankTransfers, FakeBlocks]:
    blocks, connector = FakeBlocks(8, broken=7), kind(KVTransferConfig(kv_connector="theirs"), CONTEXT)
    return connector, RankTransfers(connector, blocks, written), blocks


def test_what_a_step_loads_is_told_before_it_and_what_ends_later_before_the_next() -> None:
    written = Written()
    connector, transfers, blocks = started(Filling, written)
    transfers.begin(bytes([5, 2]))
    assert written.calls == [[2, 5]]
    assert (blocks.contents, blocks.num_begun) == (b"\0\0x\0\0x\0\0", 1)
    thread = threading.Thread(target=connector.fill, args=(3, 1))
    thread.start()
    thread.join()
    assert written.calls == [[2, 5]]
    transfers.begin(b"")
    transfers.begin(b"")
    assert written.calls == [[2, 5], [1, 3]]
    buffer = memoryview(bytearray(1))
    connector.blocks.read([3], [buffer])
    assert (bytes(buffer), connector.blocks.block_bytes) == (b"x", 1)


def test_a_write_that_fails_midway_is_told_too() -> None:
    written = Written()
    connector, transfers, blocks = started(Filling, written)
    with pytest.raises(OSError, match="block 7 is broken"):
        connector.fill(0, 7, 4)
    transfers.begin(b"")
    assert written.calls == [[0, 4, 7]]
    assert blocks.contents[0] == ord("x")


def test_a_load_of_one_layer_is_told_before_its_attention() -> None:
    written = Written()
    _, transfers, _ = started(FillingByLayer, written)
    hook = transfers.hook
    assert hook is not None
    transfers.begin(bytes([1]))
    assert written.calls == []
    hook.before_attention(0)
    assert written.calls == []
    hook.before_attention(1)
    assert written.calls == [[1]]


def test_the_connector_has_the_cache_itself_where_nobody_asks() -> None:
    connector, transfers, blocks = started(Filling, None)
    assert connector.blocks is blocks
    assert transfers.hook is None
    transfers.begin(bytes([6]))
    assert blocks.contents[6] == ord("x")
