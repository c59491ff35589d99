"""The counting executor with ranks that can be profiled: they count steps, and may refuse to."""

import asyncio
from typing import Any

import msgspec

from pyllm._rust import Plan
from pyllm.errors import EngineDeadError
from pyllm.wire.messages import Sampled
from pyllm.wire.profiles import OpTime, RankProfile, RankTimes
from tests.core.counting_executor import CountingExecutor


class ProfiledExecutor(CountingExecutor):
    """Two ranks. `calls` are those of profiles, in order with the numbers of the steps."""

    def __init__(self, refuses: str = "", event_bytes: int = 3) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self._refuses = refuses
        self._event_bytes = event_bytes

    def submit(self, plan: Plan, transfers: bytes = b"") -> asyncio.Future[Sampled]:
        self.calls.append(plan.step)
        return super().submit(plan, transfers)

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if method not in ("start_profile", "stop_profile"):
            return await super().collective(method, *args)
        if self.death is not None:
            raise self.death
        self.calls.append((method, args[0]))
        await asyncio.sleep(0)
        if method == self._refuses:
            raise EngineDeadError("worker 1 refused a call: no memory")
        if method == "start_profile":
            return [None, None]
        return [
            msgspec.to_builtins(profile(rank, self._event_bytes * args[0]), builtin_types=(bytes,)) for rank in (0, 1)
        ]


def profile(rank: int, num_bytes: int = 0) -> RankProfile:
    times = RankTimes(rank, 2, 5, 10.0, 1.0, 0, [OpTime("norm", "rust", 4, 9.0, 0.9)])
    return RankProfile(times, bytes(num_bytes))
