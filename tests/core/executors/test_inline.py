import asyncio
import gc
import threading
from array import array
from typing import Any

import pytest

from pyllm.core.executors.inline import InlineExecutor
from pyllm.errors import EngineDeadError, StartError, WorkerDeadError
from pyllm.wire.messages import Sampled, Step
from tests.core.executors.planned import plans


class Answered:
    """A step that has ended."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled = sampled

    def is_done(self) -> bool:
        return True

    def answer(self) -> Sampled:
        return self._sampled


class FakeRank:
    """Fails at the second step, and may be told not to go on before `goes_on`."""

    def __init__(self, error: Exception | None = None, goes_on: threading.Event | None = None) -> None:
        self._error = error or ValueError("the machine is broken")
        self._goes_on = goes_on
        self.called: list[str] = []

    def begin(self, step: Step, frame: memoryview) -> Answered:
        if self._goes_on is not None:
            self._goes_on.wait(30)
        if step.step == 1:
            raise self._error
        return Answered(Sampled(step.step, array("i", [0, 1]).tobytes(), array("i", [len(frame)]).tobytes()))

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        self.called.append(method)
        return {"add": sum, "finish_transfers": len}[method](args)


def broken() -> FakeRank:
    raise MemoryError("no memory")


async def test_steps_calls_and_errors() -> None:
    executor = InlineExecutor(FakeRank)
    await executor.start()
    assert await executor.collective("add", 1, 2) == [3]
    with pytest.raises(EngineDeadError, match="subtract failed"):
        await executor.collective("subtract")
    first, second = plans(2)
    assert array("i", (await executor.submit(first)).tokens)[0] == len(memoryview(first))
    with pytest.raises(WorkerDeadError, match="step 1 failed: the machine is broken") as caught:
        await executor.submit(second)
    assert caught.value.cause == "crashed"
    assert b"ValueError: the machine is broken" in caught.value.log
    await executor.close()


async def test_model_that_does_not_load_is_a_start_error() -> None:
    executor = InlineExecutor(broken)
    with pytest.raises(StartError, match="no memory"):
        await executor.start()
    await executor.close()


async def test_step_that_fails_ends_the_rank_until_another_one_is_loaded() -> None:
    made: list[FakeRank] = []

    def load() -> FakeRank:
        made.append(FakeRank())
        return made[-1]

    executor = InlineExecutor(load)
    await executor.start()
    assert executor.death is None
    first, second, third = plans(3)
    answers = [executor.submit(plan) for plan in (first, second, third)]
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(outcomes[0], Sampled)
    assert outcomes[1] is outcomes[2] is executor.death
    with pytest.raises(WorkerDeadError, match="step 1 failed"):
        await executor.collective("add", 1, 2)
    await executor.restart()
    assert len(made) == 2
    assert made[0].called == ["finish_transfers"], "its files would stay open"
    assert executor.death is None
    assert await executor.collective("add", 1, 2) == [3]
    assert (await executor.submit(first)).step == 0
    await executor.close()


async def test_memory_that_is_not_there_is_a_cause_of_its_own() -> None:
    executor = InlineExecutor(lambda: FakeRank(MemoryError("no memory")))
    await executor.start()
    with pytest.raises(WorkerDeadError) as caught:
        await executor.submit(plans(2)[1])
    assert caught.value.cause == "out_of_memory"
    await executor.close()


async def test_a_thread_that_does_not_go_on_is_given_up() -> None:
    goes_on = threading.Event()
    ranks = iter([FakeRank(goes_on=goes_on), FakeRank()])
    executor = InlineExecutor(lambda: next(ranks))
    await executor.start()
    (plan,) = plans(1)
    answer = executor.submit(plan)
    executor.kill("stalled")
    with pytest.raises(WorkerDeadError, match="given up as stalled") as caught:
        await answer
    assert caught.value.cause == "stalled"
    await executor.restart()
    assert (await executor.submit(plan)).step == 0
    goes_on.set()  # What it answers now is nobody's.
    await executor.close()


async def test_an_error_of_a_step_that_was_given_up_is_nobodys() -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    goes_on = threading.Event()
    executor = InlineExecutor(lambda: FakeRank(goes_on=goes_on))
    await executor.start()
    answers = [executor.submit(plan) for plan in plans(2)]
    executor.kill("stalled")
    await asyncio.gather(*answers, return_exceptions=True)
    goes_on.set()
    await asyncio.wrap_future(executor._thread.call(lambda: None))
    await asyncio.sleep(0)  # The steps before it have been told of by now.
    gc.collect()
    assert problems == []
    await executor.close()


async def test_restart_that_cannot_load_may_be_tried_again() -> None:
    ranks = iter([FakeRank(), None, FakeRank()])

    def load() -> FakeRank:
        rank = next(ranks)
        return broken() if rank is None else rank

    executor = InlineExecutor(load)
    await executor.start()
    with pytest.raises(StartError, match="no memory"):
        await executor.restart()
    with pytest.raises(WorkerDeadError):
        await executor.collective("add", 1, 2)
    await executor.restart()
    assert await executor.collective("add", 1, 2) == [3]
    await executor.close()
