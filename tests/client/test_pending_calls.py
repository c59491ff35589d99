"""An answer goes to who waits for it, once."""

import asyncio

import pytest

from pyllm.client.pending_calls import Calls
from pyllm.errors import EngineDeadError
from pyllm.wire.messages import Reply


async def test_answers_find_their_calls_and_the_rest_fails() -> None:
    calls = Calls()
    first, second, third = (calls.open(number) for number in (1, 2, 3))
    calls.settle(Reply(2, True, "two"))
    calls.settle(Reply(2, True, "two again"))
    calls.settle(Reply(9, True, "nobody's"))
    calls.close(3)
    calls.settle(Reply(3, True, "too late"))
    calls.fail_all(EngineDeadError("lost"))
    assert await second == Reply(2, True, "two")
    with pytest.raises(EngineDeadError, match="lost"):
        await asyncio.wait_for(first, 1.0)
    assert not third.done()
