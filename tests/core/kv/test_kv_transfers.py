"""Loads on several ranks, and when a load is chosen, with a connector that has every prompt."""

import asyncio
from typing import Any

import msgspec
import numpy as np

from pyllm._rust import Scheduler
from pyllm.core.kv.kv_transfers import KVTransfers
from pyllm.wire.messages import TransferResults
from tests.core.offering_connector import OfferingConnector
from tests.core.remembering_executor import BLOCK_SIZE


class Ranks:
    """Two ranks that end loads when they are told to, with the blocks that failed."""

    death = None

    def __init__(self) -> None:
        self.results: list[list[TransferResults | None]] = []
        self.num_kills = 0

    def kill(self, cause: str) -> None:
        self.num_kills += 1

    async def collective(self, method: str, *args: Any) -> list[bytes]:
        return [msgspec.msgpack.encode(results) for results in self.results.pop(0)]


def offered(now: float) -> tuple[KVTransfers, Scheduler, OfferingConnector, Ranks, list[float]]:
    """Transfers of a request of 4 blocks, for two ranks, whose clock shows what the list holds."""
    scheduler = Scheduler(
        block_size=BLOCK_SIZE, num_blocks=32, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, vocab_size=99
    )
    clock = [now]
    connector, ranks = OfferingConnector(num_ranks=2), Ranks()
    transfers = KVTransfers(
        scheduler,
        ranks,  # type: ignore[arg-type]  # All of an executor that is called.
        connector,
        clock=lambda: clock[0],
        sleep=asyncio.sleep,
        fail=lambda client, request, reason: None,
    )
    return transfers, scheduler, connector, ranks, clock


async def test_a_load_ends_when_every_rank_has_ended_it_with_what_all_have_got() -> None:
    transfers, scheduler, connector, ranks, _ = offered(0.0)
    scheduler.add(0, 1, bytes(4 * 17), seed=0, max_tokens=1)
    transfers.add(0, 1)
    assert scheduler.schedule(0.0) is None
    ranks.results = [[TransferResults(loads=(0,)), None]]
    transfers.flush()
    (load,) = connector.told.loads
    assert (load.num_tokens, load.step) == (16, None), "of several ranks every load is waited for"
    await transfers.wait()
    assert scheduler.stats()["num_loading"] == 1
    ranks.results = [[None, TransferResults(loads=(0,), error_blocks=(load.blocks[0][2],))]]
    await transfers.wait()
    assert (scheduler.stats()["num_loading"], scheduler.stats()["num_failed_loads"]) == (0, 1)
    assert transfers.stats()["num_kv_loaded_tokens"] == 8
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert plan.num_tokens == 9, "what comes after the first block that failed is computed"
    assert not transfers.is_busy


async def test_where_one_rank_fails_all_are_restarted_without_the_connector() -> None:
    transfers, scheduler, _, ranks, _ = offered(0.0)
    scheduler.add(0, 1, bytes(4 * 17), seed=0, max_tokens=1)
    transfers.add(0, 1)
    assert scheduler.schedule(0.0) is None
    ranks.results = [[TransferResults(loads=(0,)), TransferResults(failure="LookupError: a bug")]]
    transfers.flush()
    await transfers.wait()
    assert (ranks.num_kills, transfers.stats()["num_kv_connector_failures"]) == (1, 1)
    scheduler.lose_device()
    transfers.lose()
    await transfers.connect()
    transfers.recovered()
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert (plan.num_tokens, transfers.take(with_step=True)) == (17, b"")


async def test_a_hit_is_loaded_where_that_has_been_faster_than_to_compute_it_and_now_and_then_else() -> None:
    transfers, scheduler, _, ranks, clock = offered(0.0)
    speeds: list[int] = []
    for request in range(-1, 40):
        prompt = np.full(17, request + 1, "<i4").tobytes()
        scheduler.add(0, request + 1, prompt, seed=0, max_tokens=1)
        if request >= 0:  # The one before shows how fast a prompt is computed.
            transfers.add(0, request + 1)
        plan = scheduler.schedule(clock[0])
        if plan is None:
            speeds.append(request)
            ranks.results = [2 * [TransferResults(loads=(len(speeds) - 1,))]]
            transfers.flush()
            clock[0] += 16.0  # a second a token
            await transfers.wait()
            plan = scheduler.schedule(clock[0])
        assert plan is not None
        starts, tokens = np.array([0, 1], "<i4"), np.array([7], "<i4")
        scheduler.commit(plan.step, starts, tokens, plan.num_tokens * 0.5)
    assert speeds == [0, 16, 32], "one of 16"
    stats = transfers.stats()
    assert (stats["kv_load_tokens_per_second"], stats["prefill_tokens_per_second"]) == (1, 2)
    assert stats["num_kv_skipped_hits"] == 37
