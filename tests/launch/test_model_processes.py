"""The room for models is given in order, and never twice; a model that is not wanted any more leaves its place."""

import asyncio

import pytest

from pyllm.errors import ConfigError
from pyllm.launch.model_processes import MemoryRoom


async def entered(room: MemoryRoom, name: str, wish: int, num_bytes: int) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(room.enter(name, wish, num_bytes))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_small_model_does_not_overtake_a_large_one() -> None:
    room = MemoryRoom(100, 0)
    await room.enter("first", 1, 60)
    large, small = await entered(room, "large", 2, 80), await entered(room, "small", 3, 10)
    assert not large.done()
    assert not small.done()
    room.leave("first")
    await large
    await small
    assert room.num_bytes == 90


async def test_a_model_that_gives_up_waiting_lets_the_next_one_in() -> None:
    room = MemoryRoom(100, 0)
    await room.enter("first", 1, 60)
    large, small = await entered(room, "large", 2, 80), await entered(room, "small", 3, 10)
    large.cancel()
    await asyncio.wait({large})
    await small
    assert room.num_bytes == 70
    room.leave("first")
    assert room.num_bytes == 10


async def test_a_model_that_leaves_as_it_gets_its_room_holds_none() -> None:
    room = MemoryRoom(100, 1)
    await room.enter("first", 1, 60)
    waiting = await entered(room, "second", 2, 60)
    room.leave("first")
    waiting.cancel()
    await asyncio.wait({waiting})
    room.leave("second")  # As the run of a model does, whatever became of it.
    assert room.num_bytes == 0
    await room.enter("third", 3, 100)


async def test_a_model_beyond_the_whole_budget_is_refused_with_the_numbers() -> None:
    room = MemoryRoom(10**9, 0)
    with pytest.raises(ConfigError, match=r"2\.00 GB of 1\.00 GB for all models \(--memory-budget\)"):
        await room.enter("huge", 1, 2 * 10**9)
    await room.enter("fits", 2, 10**9)


async def test_an_earlier_wish_that_asks_later_comes_first() -> None:
    room = MemoryRoom(100, 0)
    await room.enter("first", 1, 60)
    later, earlier = await entered(room, "later", 3, 90), await entered(room, "earlier", 2, 40)
    await earlier
    assert not later.done()
    assert room.num_bytes == 100
