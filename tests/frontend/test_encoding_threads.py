"""Texts that wait go together, the same ones once, and none waits behind a long one or falls with a bad one."""

import asyncio
import threading

import pytest

from pyllm.errors import RequestError
from pyllm.frontend.encoding_threads import BATCH_CHARACTERS, LONG_CHARACTERS, EncodingThreads
from tests.waiting import until


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
