"""What host memory holds after a restart: only what every rank has, and nothing of before a reset."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyllm._rust import Scheduler
from pyllm.core.executors.host_inventory import HostInventory, whole_blocks
from pyllm.errors import WorkerDeadError
from tests.core.counting_executor import DEATH, CountingExecutor

NUM_BLOCKS = 8


def record(block: int, number: int, group: int = 0) -> bytes:
    words = (group, 0)
    return block.to_bytes(4, "little") + bytes([number]) * 32 + b"".join(word.to_bytes(4, "little") for word in words)


class Ranks(CountingExecutor):
    """Two ranks, and what their host memory holds. `on_call` is called before each call is answered."""

    def __init__(self, *held: list[bytes]) -> None:
        super().__init__()
        self.held = list(held)
        self.calls: list[str] = []
        self.on_call: Callable[[str], None] = lambda method: None

    async def collective(self, method: str, *args: Any) -> list[Any]:
        self.calls.append(method)
        answers = [b"".join(blocks) for blocks in self.held]
        await asyncio.sleep(0)
        self.on_call(method)
        if self.death is not None:
            raise self.death
        if method == "forget_host_blocks":
            self.held = [[] for _ in self.held]
            return [None for _ in self.held]
        return answers


def scheduler(num_host_blocks: int = NUM_BLOCKS) -> Scheduler:
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 32, "vocab_size": 9}
    return Scheduler(block_size=4, num_blocks=8, num_host_blocks=num_host_blocks, **limits)


def num_known(of: Scheduler) -> int:
    return of.stats()["num_cached_host_blocks"]


def reset(inventory: HostInventory) -> Awaitable[None]:
    told = inventory.reset()
    assert told is not None
    return told


async def test_a_block_counts_if_every_rank_has_it_under_the_same_name() -> None:
    ranks = Ranks(
        [record(0, 1), record(1, 2), record(2, 3), record(3, 4, group=1)],
        [record(1, 2), record(2, 9), record(3, 4, group=0), record(7, 5), record(0, 1)],
    )
    assert await whole_blocks(ranks) == record(0, 1) + record(1, 2)
    known = scheduler()
    await HostInventory(known, ranks).restore()
    assert num_known(known) == 2


async def test_without_a_host_pool_nobody_is_asked() -> None:
    ranks = Ranks([])
    inventory = HostInventory(scheduler(0), ranks)
    await inventory.restore()
    assert inventory.reset() is None
    assert ranks.calls == []


async def test_what_was_reset_is_not_found_after_a_restart() -> None:
    ranks, known = Ranks([record(0, 1)]), scheduler()
    inventory = HostInventory(known, ranks)
    await reset(inventory)
    assert ranks.held == [[]]
    await inventory.restore()
    assert num_known(known) == 0
    assert ranks.calls == ["forget_host_blocks", "host_inventory"]


async def test_a_reset_while_there_are_no_workers_reaches_the_next_ones(caplog: pytest.LogCaptureFixture) -> None:
    ranks, known = Ranks([record(0, 1)]), scheduler()
    inventory = HostInventory(known, ranks)
    ranks.die("killed")
    await reset(inventory)
    assert "the next workers forget the blocks in host memory" in caplog.text
    ranks.death = None
    await inventory.restore()
    assert (ranks.calls[1:], num_known(known)) == (["forget_host_blocks", "host_inventory"], 0)


async def test_a_reset_while_new_workers_are_asked_counts() -> None:
    ranks, known = Ranks([record(0, 1)]), scheduler()
    inventory = HostInventory(known, ranks)
    resets: list[Awaitable[None]] = []

    def interrupt(method: str) -> None:
        if method == "host_inventory" and not resets:
            resets.append(reset(inventory))

    ranks.on_call = interrupt
    await inventory.restore()
    await resets[0]
    assert num_known(known) == 0


async def test_workers_that_die_while_they_are_asked_are_named() -> None:
    ranks = Ranks([record(0, 1)])
    ranks.die("killed")
    with pytest.raises(WorkerDeadError, match=DEATH):
        await HostInventory(scheduler(), ranks).restore()
