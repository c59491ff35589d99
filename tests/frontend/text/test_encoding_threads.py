"""Texts that wait go together, the same ones once, and none waits behind a long one or falls with a bad one."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import RequestError
from pyllm.frontend.text.encoding_threads import (
    BATCH_CHARACTERS,
    ENTRY_BYTES,
    LONG_CHARACTERS,
    EncodingCache,
    EncodingCounts,
    EncodingThreads,
)
from tests.waiting import until

IDS = b"\x01\x00\x00\x00" * 10


class Gate:
    """Encodes a text as its UTF-8, once `opened`; "bad" is none, and "broken" breaks the encoder."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.batches: list[list[str]] = []

    def __call__(self, texts: list[str]) -> list[bytes | Exception]:
        self.batches.append(texts)
        self.opened.wait()
        if "broken" in texts:
            raise RuntimeError("broken")
        return [RequestError("bad") if text == "bad" else text.encode() for text in texts]


async def test_what_comes_meanwhile_is_one_batch_and_the_same_text_is_encoded_once() -> None:
    gate = Gate()
    threads = EncodingThreads(gate)
    first = asyncio.ensure_future(threads.encode(["a"]))
    await until(lambda: gate.batches)
    others = [asyncio.ensure_future(threads.encode(texts)) for texts in (["b", "c"], ["c", "d"], ["a", "e"])]
    await asyncio.sleep(0)
    gate.opened.set()
    assert await asyncio.gather(first, *others) == [
        {"a": b"a"},
        {"b": b"b", "c": b"c"},
        {"c": b"c", "d": b"d"},
        {"a": b"a", "e": b"e"},
    ]
    assert gate.batches == [["a"], ["b", "c", "d", "e"]]


async def test_what_comes_in_one_turn_of_the_loop_is_one_batch() -> None:
    gate = Gate()
    gate.opened.set()
    threads = EncodingThreads(gate)
    await asyncio.gather(*(threads.encode([text]) for text in "abc"))
    assert gate.batches == [["a", "b", "c"]]


async def test_a_batch_is_no_longer_than_it_may_be() -> None:
    gate = Gate()
    gate.opened.set()
    threads = EncodingThreads(gate)
    texts = [letter * (LONG_CHARACTERS - 1) for letter in "abcdefgh"]
    await asyncio.gather(*(threads.encode([text]) for text in texts))
    assert gate.batches == [texts[:4], texts[4:]]
    assert sum(map(len, gate.batches[0])) <= BATCH_CHARACTERS


async def test_texts_that_are_long_together_go_one_by_one() -> None:
    gate = Gate()
    gate.opened.set()
    texts = [letter * (LONG_CHARACTERS // 2) for letter in "abc"]
    await EncodingThreads(gate).encode(texts)
    assert gate.batches == [[text] for text in texts]


async def test_a_short_text_does_not_wait_behind_a_long_one() -> None:
    release = threading.Event()

    def encode(texts: list[str]) -> list[bytes]:
        if len(texts[0]) >= LONG_CHARACTERS:
            release.wait()
        return [text.encode() for text in texts]

    threads = EncodingThreads(encode)
    long = asyncio.ensure_future(threads.encode(["x" * LONG_CHARACTERS]))
    assert await threads.encode(["short"]) == {"short": b"short"}
    assert await threads.run(10, str, 5) == "5"
    assert not long.done()
    release.set()
    await long


async def test_a_bad_text_fails_alone_and_a_broken_encoder_fails_its_batch_alone() -> None:
    gate = Gate()
    gate.opened.set()
    threads = EncodingThreads(gate)
    good, bad = await asyncio.gather(threads.encode(["a"]), threads.encode(["b", "bad"]), return_exceptions=True)
    assert good == {"a": b"a"}
    assert isinstance(bad, RequestError)
    with pytest.raises(RuntimeError, match="broken"):
        await threads.encode(["broken"])
    assert await threads.encode(["a"]) == {"a": b"a"}


async def test_who_no_longer_waits_takes_nothing_from_the_others() -> None:
    gate = Gate()
    threads = EncodingThreads(gate)
    leaving, staying = (asyncio.ensure_future(threads.encode(["a"])) for _ in range(2))
    await until(lambda: gate.batches)
    leaving.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    assert await staying == {"a": b"a"}
    assert leaving.cancelled()


async def test_work_gives_and_raises_what_it_does() -> None:
    threads = EncodingThreads(Gate())
    assert await threads.run(LONG_CHARACTERS, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(1, divmod, 7, 0)


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
