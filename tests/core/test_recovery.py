"""What a core does when its workers die."""

import pytest

from pyllm.errors import GivenUpError
from pyllm.messages import FinishCode, Heartbeat, Rejected
from tests.core.counting_executor import DEATH, CountingExecutor
from tests.core.raw_engine import Engine


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("dies_at", range(5))
async def test_streams_go_on_with_the_same_tokens(depth: int, dies_at: int) -> None:
    engine = Engine(CountingExecutor(dies_at=[dies_at]), depth=depth)
    engine.submit(1, [1, 2], max_tokens=5)
    engine.submit(2, list(range(20, 60)), max_tokens=3)
    await engine.run_dry()
    assert engine.outputs() == {1: ([3, 4, 5, 6, 7], FinishCode.LENGTH), 2: ([60, 61, 62], FinishCode.LENGTH)}
    assert engine.executor.num_restarts == engine.core.stats()["num_recoveries"] == 1
    assert engine.executor.allocated == (64, 0)
    assert engine.messages(Rejected) == []


async def test_clients_are_told_at_once_that_it_recovers_and_why() -> None:
    engine = Engine(CountingExecutor(dies_at=[1]))
    engine.submit(1, [1, 2])
    await engine.run_dry()
    assert engine.messages(Heartbeat) == [Heartbeat("recovering", 0, DEATH), Heartbeat("ready", 0)]


async def test_a_worker_that_dies_with_nothing_to_do_is_replaced() -> None:
    engine = Engine()
    engine.executor.die("killed")
    engine.core.beat()
    await engine.core.step()
    assert (engine.executor.num_restarts, engine.executor.death) == (1, None)


async def test_a_worker_that_dies_too_often_is_given_up() -> None:
    engine = Engine(CountingExecutor(dies_at=range(100)), max_restarts=2)
    engine.submit(1, [1, 2])
    with pytest.raises(GivenUpError, match=f"more than 2 times within 60 s.*{DEATH}"):
        await engine.core.run()
    assert engine.messages(Rejected) == []
