"""How a core is started: what it asks its ranks, and what it makes of their answers."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.step import core_config
from pyllm.core.process import start
from pyllm.errors import ConfigError
from tests.core.counting_executor import CountingExecutor


class UnequalRanks(CountingExecutor):
    """Two ranks that differ in room and speed, and keep what they were asked."""

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self._answers = {"num_blocks": [64, 48], "num_host_blocks": [9, 8], "swap_seconds": [0.25, 0.5]} | answers

    async def collective(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, *args))
        return self._answers.get(method) or 2 * await super().collective(method, *args)


async def test_every_rank_gets_what_the_smallest_has_room_for(tmp_path: Path) -> None:
    ranks = UnequalRanks()
    scheduler, ready = await start(core_config(str(tmp_path), ranks=2), ranks)
    assert ("allocate", 48, 8) in ranks.calls
    assert (scheduler.stats()["num_blocks"], ready.model.num_blocks) == (48, 48)


async def test_swaps_are_timed_once_there_is_something_to_swap(tmp_path: Path) -> None:
    ranks = UnequalRanks()
    await start(core_config(str(tmp_path), ranks=2), ranks)
    methods = [method for method, *_ in ranks.calls]
    assert methods.index("allocate") < methods.index("swap_seconds")


async def test_a_cache_without_room_for_one_block_is_a_configuration_error(tmp_path: Path) -> None:
    ranks = UnequalRanks(num_blocks=[64, 0])
    with pytest.raises(ConfigError, match="no room for one block of 16 tokens: raise kv_cache_memory_bytes"):
        await start(core_config(str(tmp_path), ranks=2), ranks)
    assert [call for call in ranks.calls if call[0] == "allocate"] == []
