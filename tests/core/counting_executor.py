"""An executor whose model counts: after token t comes t + 1. Whatever the schedule, a right plan gives that answer."""

import asyncio
from typing import Any

import numpy as np

from pyllm._rust import Plan
from pyllm.errors import EngineDeadError
from pyllm.messages import Sampled
from tests.plan_reader import read_plan


class CountingExecutor:
    """Keeps every plan it was given; dies at step `dies_at`, answers step `lies_at` with too few tokens."""

    def __init__(self, num_blocks: int = 64, dies_at: int | None = None, lies_at: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.lies_at = lies_at
        self.dies_at = dies_at
        self.plans: list[dict[str, Any]] = []
        self.closed = False
        self._last_token: dict[int, int] = {}

    async def start(self) -> None:
        pass

    def submit(self, plan: Plan) -> asyncio.Future[Sampled]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sampled] = loop.create_future()
        if plan.step == self.dies_at:
            loop.call_soon(future.set_exception, EngineDeadError("worker 0 of core 0 was killed by SIGKILL"))
        else:
            loop.call_soon(future.set_result, self.sample(plan))
        return future

    async def collective(self, method: str, *args: Any) -> list[Any]:
        answers = {"num_blocks": self.num_blocks, "num_host_blocks": 0, "allocate": None, "swap_seconds": 0.0}
        return [(answers | {"statistics": {}, "instruction_set": "none"})[method]]

    async def close(self) -> None:
        self.closed = True

    def sample(self, plan: Plan) -> Sampled:
        """What the model answers to a plan, which is kept."""
        sections = read_plan(plan)
        self.plans.append(sections)
        tokens = []
        for row, slot in enumerate(sections["slots"]):
            for index in range(sections["sampled_starts"][row], sections["sampled_starts"][row + 1]):
                seen = int(sections["tokens"][sections["logits_rows"][index]])
                token = (self._last_token[slot] if seen < 0 else seen) + 1
                self._last_token[slot] = token
                tokens.append(token)
        if plan.step == self.lies_at:
            tokens = []
        return Sampled(plan.step, sections["sampled_starts"].tobytes(), np.array(tokens, np.int32).tobytes())
