"""Clients' messages are answered, whatever happens to them."""

import asyncio
from array import array
from typing import Any

import pytest

from pyllm.errors import EngineDeadError
from pyllm.wire.messages import POOLING, Call, Deltas, Reply
from tests.core.counting_executor import CountingExecutor
from tests.core.raw_engine import EPOCH, Engine
from tests.core.remembering_executor import RememberingExecutor


class Sleepless(CountingExecutor):
    async def collective(self, method: str, *args: Any) -> list[Any]:
        if method == "sleep":
            raise EngineDeadError("rank 0 cannot sleep")
        return await super().collective(method, *args)


async def test_a_call_that_fails_later_is_answered() -> None:
    engine = Engine(Sleepless())
    engine.receive(Call(EPOCH, 10, "sleep", ()))
    while not (replies := engine.messages(Reply)):
        await engine.core.step()
        await asyncio.sleep(0)
    assert replies == [Reply(10, False, "the engine failed: rank 0 cannot sleep")]


@pytest.mark.parametrize(("kind", "cached"), [("last", 8), ("mean", 0), ("cls", 0)])
async def test_a_prompt_is_computed_whole_if_its_pooling_needs_more_than_the_last_token(kind: str, cached: int) -> None:
    engine = Engine(RememberingExecutor())
    for request in (1, 2):
        engine.submit(request, list(range(12)), max_tokens=0, sampling=POOLING[kind])
        await engine.run_dry()
    assert array("i", engine.messages(Deltas)[-1].cached_tokens)[0] == cached
