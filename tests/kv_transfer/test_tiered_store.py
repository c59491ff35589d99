"""Two stores as one: asked in order, both written, the first filled from the second beside the loads."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyllm.kv_transfer.tiered_store import MAX_PROMOTED_BYTES, TieredStore
from tests.kv_transfer.dict_store import DictStore, forget_all
from tests.kv_transfer.gated_store import GatedStore


def load(tiers: TieredStore, keys: Sequence[bytes], size: int) -> list[bytes | None]:
    """What the tiers give."""
    buffers = [memoryview(bytearray(size)) for _ in keys]
    loaded = tiers.load(keys, buffers)
    return [bytes(buffer) if is_there else None for buffer, is_there in zip(buffers, loaded, strict=True)]


def test_a_block_comes_from_the_first_tier_that_has_it_and_is_kept_in_those_before() -> None:
    forget_all()
    fast, slow = GatedStore("fast", "save"), DictStore("slow")
    fast.gate.set()
    saver = ThreadPoolExecutor(1)
    tiers = TieredStore([fast, slow], saver=saver)
    assert tiers.save([b"a", b"b"], [memoryview(b"1111"), memoryview(b"2222")], "long") == [True, True]
    assert set(fast.blocks) == set(slow.blocks) == {b"a", b"b"}
    del fast.blocks[b"b"]
    fast.gate.clear()
    assert tiers.lookup([b"a", b"b", b"c"]) == [True, True, False]
    assert load(tiers, [b"a", b"b", b"c"], 4) == [b"1111", b"2222", None], "it does not wait for the faster tier"
    assert [stats.num_loaded for stats in tiers.stats()] == [1, 1]
    fast.gate.set()
    saver.submit(bool).result()
    assert bytes(fast.blocks[b"b"][1]) == b"2222"
    assert fast.retentions == {b"a": "long", b"b": "default"}
    tiers.close()


def test_a_store_that_is_only_read_writes_nothing() -> None:
    forget_all()
    fast, slow = DictStore("fast"), DictStore("slow")
    slow.save([b"a"], [memoryview(b"1111")])
    saver = ThreadPoolExecutor(1)
    tiers = TieredStore([fast, slow], promotes=False, saver=saver)
    assert load(tiers, [b"a"], 4) == [b"1111"]
    saver.submit(bool).result()
    assert not fast.blocks
    tiers.close()


def test_what_is_loaded_after_close_is_not_saved() -> None:
    forget_all()
    fast, slow = DictStore("fast"), DictStore("slow")
    slow.save([b"a"], [memoryview(b"1111")])
    tiers = TieredStore([fast, slow])
    tiers.close()
    assert load(tiers, [b"a"], 4) == [b"1111"]
    assert not fast.blocks


def test_what_waits_for_a_faster_tier_is_bounded() -> None:
    forget_all()
    fast, slow = GatedStore("fast", "save"), DictStore("slow")
    size = MAX_PROMOTED_BYTES // 2
    slow.save([b"a", b"b", b"c"], [memoryview(bytes([value]) * size) for value in range(3)])
    saver = ThreadPoolExecutor(1)
    tiers = TieredStore([fast, slow], saver=saver)
    assert None not in load(tiers, [b"a", b"b", b"c"], size)
    assert None not in load(tiers, [b"c"], size)
    fast.gate.set()
    saver.submit(bool).result()
    assert set(fast.blocks) == {b"a", b"b"}
    assert load(tiers, [b"c"], size) == [bytes([2]) * size]
    saver.submit(bool).result()
    assert set(fast.blocks) == {b"a", b"b", b"c"}
    tiers.close()
    forget_all()
