"""Two stores as one: asked in order, both written, the first filled from the second."""

from pyllm.kv_transfer.tiered_store import TieredStore
from tests.kv_transfer.dict_store import DictStore, forget_all


def test_a_block_comes_from_the_first_tier_that_has_it_and_is_kept_in_those_before() -> None:
    forget_all()
    fast, slow = DictStore("fast"), DictStore("slow")
    tiers = TieredStore([fast, slow])
    blocks = [memoryview(b"1111"), memoryview(b"2222")]
    assert tiers.save([b"a", b"b"], blocks) == [True, True]
    assert set(fast.blocks) == set(slow.blocks) == {b"a", b"b"}
    del fast.blocks[b"b"]
    assert tiers.lookup([b"a", b"b", b"c"]) == [True, True, False]
    buffers = [memoryview(bytearray(4)) for _ in range(3)]
    assert tiers.load([b"a", b"b", b"c"], buffers) == [True, True, False]
    assert [bytes(buffer) for buffer in buffers[:2]] == [b"1111", b"2222"]
    assert b"b" in fast.blocks
    assert [stats.num_loaded for stats in tiers.tier_stats()] == [1, 1]
    tiers.close()
