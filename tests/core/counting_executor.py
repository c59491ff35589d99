"""An executor whose model counts: after token t comes t + 1. Whatever the schedule, a right plan gives that answer."""

import asyncio
from collections.abc import Collection
from typing import Any

import numpy as np

from pyllm._rust import Plan
from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import Cause, WorkerDeadError
from pyllm.wire.messages import Sampled
from tests.plan_reader import read_plan

DEATH = "worker 0 of core 0 was killed by SIGKILL"


class CountingExecutor:
    """Keeps every plan it was given; dies in the steps of `dies_at`, answers step `lies_at` with too few tokens.

    After a death it knows nothing until it is restarted, and `allocate`d what it had.
    """

    def __init__(self, num_blocks: int = 64, dies_at: Collection[int] = (), lies_at: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.lies_at = lies_at
        self.dies_at = dies_at
        self.death: WorkerDeadError | None = None
        self.num_restarts = 0
        self.allocated: tuple[Any, ...] = (num_blocks, 0)
        self.plans: list[dict[str, Any]] = []
        self.closed = False
        self._last_token: dict[int, int] = {}

    async def start(self) -> None:
        pass

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sampled] = loop.create_future()
        if self.death is None and self.dies_with(plan):
            self.die("killed")
        if self.death is not None:
            loop.call_soon(_fail, future, self.death)
        else:
            loop.call_soon(_answer, future, self.sample(plan))
        return future

    def dies_with(self, plan: Plan) -> bool:
        """Whether it dies of this plan."""
        return plan.step in self.dies_at

    def die(self, cause: Cause) -> None:
        self.death = WorkerDeadError(DEATH, cause, b"last words")

    def kill(self, cause: Cause) -> None:
        self.die(cause)

    async def restart(self) -> None:
        self.num_restarts += 1
        self.death = None
        self.allocated = ()
        self._last_token.clear()

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if method == "allocate":
            self.allocated = args
        answers = {"num_blocks": self.num_blocks, "num_host_blocks": 0, "allocate": None, "swap_seconds": 0.0}
        answers |= {"token_seconds": 0.0, "statistics": {}, "instruction_set": "none"}
        return [(answers | {"host_inventory": b"", "forget_host_blocks": None})[method]]

    def use_weights(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    async def close(self) -> None:
        self.closed = True

    def sample(self, plan: Plan) -> Sampled:
        """What the model answers to a plan, which is kept."""
        assert self.allocated
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


def _answer(future: asyncio.Future[Sampled], sampled: Sampled) -> None:
    if not future.done():
        future.set_result(sampled)


def _fail(future: asyncio.Future[Sampled], death: WorkerDeadError) -> None:
    if not future.done():
        future.set_exception(death)
