"""The cache gives what was put, keeps what was used last, and stays within its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from pyllm.frontend.encoding_cache import ENTRY_BYTES, EncodingCache, EncodingCounts

IDS = b"\x01\x00\x00\x00" * 10


def test_what_was_used_last_stays() -> None:
    cache = EncodingCache(EncodingCounts(), max_entries=2)
    cache.put("a", IDS)
    cache.put("b", IDS)
    assert cache.get("a") == IDS
    cache.put("c", IDS)
    assert [cache.get(text) for text in "abc"] == [IDS, None, IDS]


def test_tokens_are_counted_that_were_looked_up_and_found() -> None:
    counts = EncodingCounts()
    cache = EncodingCache(counts)
    assert cache.get("a") is None
    cache.put("a", IDS)
    cache.get("a")
    cache.get("a")
    assert counts == EncodingCounts(num_queried=30, num_found=20)


def test_a_text_that_would_push_out_the_others_is_left_out() -> None:
    cache = EncodingCache(EncodingCounts(), max_bytes=4000)
    cache.put("a", IDS)
    cache.put("b", b"\0" * 1000)
    assert (cache.get("a"), cache.get("b")) == (IDS, None)


@given(st.lists(st.tuples(st.text(max_size=9), st.integers(0, 400), st.booleans())))
def test_it_never_holds_more_than_it_may(steps: list[tuple[str, int, bool]]) -> None:
    cache = EncodingCache(EncodingCounts(), max_bytes=3000, max_entries=9)
    ids: dict[str, bytes] = {}
    for text, length, puts in steps:
        if puts:
            cache.put(text, ids.setdefault(text, bytes(4 * length)))
        else:
            assert cache.get(text) in (None, ids.get(text))
        assert len(cache) <= 9
        assert len(cache) * ENTRY_BYTES <= cache.num_bytes <= 3000


def test_a_smaller_cache_keeps_what_was_used_last_and_grows_again() -> None:
    cache = EncodingCache(EncodingCounts(), max_bytes=4000)
    for text in "abcd":
        cache.put(text, b"\0" * 400)
    cache.resize(0.25)
    assert [cache.get(text) for text in "abcd"] == [None, None, None, b"\0" * 400]
    assert cache.num_bytes <= 1000
    cache.resize(1.0)
    for text in "abc":
        cache.put(text, b"\0" * 400)
    assert all(cache.get(text) for text in "abcd")
