"""Clients' messages are answered, whatever happens to them."""

import asyncio
from typing import Any

from pyllm.errors import EngineDeadError
from pyllm.wire.messages import Call, Reply
from tests.core.counting_executor import CountingExecutor
from tests.core.raw_engine import EPOCH, Engine


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
