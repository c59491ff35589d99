"""A model that counts in the steps of a row's adapter: with adapter n, after token t comes t + 1 + n."""

from typing import Any

import msgspec
import numpy as np

from pyllm._rust import Plan
from pyllm.checkpoint.types import AdapterMatrices
from pyllm.errors import EngineDeadError
from pyllm.wire.messages import Sampled
from tests.core.counting_executor import CountingExecutor
from tests.plan_reader import read_plan


class AdaptingExecutor(CountingExecutor):
    """Has adapters on the host and in slots of the device, and forgets both when it dies.

    `refused` are numbers of adapters that it cannot load; `most_on_host` is the most that it had at once.
    """

    def __init__(self, refused: frozenset[int] = frozenset(), **options: Any) -> None:
        super().__init__(**options)
        self.refused = refused
        self.on_host: set[int] = set()
        self.most_on_host = 0
        self.calls: list[tuple[str, int]] = []
        self._on_device: dict[int, int] = {}
        self._of_slot: dict[int, int] = {}

    async def restart(self) -> None:
        await super().restart()
        self.on_host.clear()
        self._on_device.clear()
        self._of_slot.clear()

    async def collective(self, method: str, *args: Any) -> list[Any]:
        if method not in {"load_adapter", "unload_adapter"}:
            return await super().collective(method, *args)
        if self.death is not None:
            raise self.death
        number = args[0]
        self.calls.append((method, number))
        if method == "unload_adapter":
            self.on_host.discard(number)
            return [None]
        if number in self.refused:
            raise EngineDeadError(f"worker 0 refused a call: adapter {number} has a NaN")
        self.on_host.add(number)
        self.most_on_host = max(self.most_on_host, len(self.on_host))
        return [[each.entry.name for each in msgspec.msgpack.decode(args[2], type=list[AdapterMatrices])]]

    def sample(self, plan: Plan) -> Sampled:
        sections = read_plan(plan)
        for place, number in np.reshape(sections["adapter_loads"], (-1, 2)).tolist():
            assert number in self.on_host
            self._on_device[place] = number
        self._of_slot |= zip(sections["slot_inits"].tolist(), sections["adapter_slots"].tolist(), strict=True)
        sampled = super().sample(plan)
        tokens, starts = np.frombuffer(sampled.tokens, np.int32).copy(), sections["sampled_starts"]
        for row, slot in enumerate(sections["slots"].tolist()):
            step = self._on_device.get(self._of_slot[slot], 0)
            tokens[starts[row] : starts[row + 1]] += step
            self._last_token[slot] += step
        return Sampled(sampled.step, sampled.starts, tokens.tobytes())
