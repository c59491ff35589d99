from array import array
from typing import Any

import pytest

from pyllm.core.executors.inline import InlineExecutor
from pyllm.errors import EngineDeadError, StartError
from pyllm.messages import Sampled, Step
from tests.core.executors.planned import plans


class FakeRank:
    def run(self, step: Step, frame: memoryview) -> Sampled:
        if step.step == 1:
            raise ValueError("the machine is broken")
        return Sampled(step.step, array("i", [0, 1]).tobytes(), array("i", [len(frame)]).tobytes())

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        return {"add": sum}[method](args)


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
    with pytest.raises(EngineDeadError, match="step 1 failed: the machine is broken"):
        await executor.submit(second)
    await executor.close()


async def test_model_that_does_not_load_is_a_start_error() -> None:
    executor = InlineExecutor(broken)
    with pytest.raises(StartError, match="no memory"):
        await executor.start()
    await executor.close()
