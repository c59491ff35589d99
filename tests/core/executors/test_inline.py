from array import array
from typing import Any

import pytest

from pyllm._rust import Scheduler
from pyllm.core.executors.inline import InlineExecutor
from pyllm.errors import EngineDeadError, StartError
from pyllm.messages import Sampled, Step


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
    scheduler = Scheduler(
        block_size=16,
        num_blocks=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=512,
        vocab_size=1000,
        enable_prefix_caching=True,
    )
    scheduler.add(0, 1, array("i", range(8)).tobytes(), seed=0, max_tokens=100)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None
    assert second is not None
    assert array("i", (await executor.submit(first)).tokens)[0] == len(memoryview(first))
    with pytest.raises(EngineDeadError, match="step 1 failed: the machine is broken"):
        await executor.submit(second)
    await executor.close()


async def test_model_that_does_not_load_is_a_start_error() -> None:
    executor = InlineExecutor(broken)
    with pytest.raises(StartError, match="no memory"):
        await executor.start()
    await executor.close()
