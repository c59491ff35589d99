"""Loads and saves through the core, with a model that reads what its blocks hold and a store that fails."""

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from pyllm._rust import Scheduler
from pyllm.config.kv_transfer_settings import KVTransferConfig
from pyllm.core.kv_transfers import TRANSFER_SECONDS, KVTransfers
from pyllm.errors import ConfigError
from pyllm.kv_transfer import ConnectorContext
from pyllm.kv_transfer.store_lookup import StoreLookup
from pyllm.kv_transfer.store_transfer import StoreTransfer
from pyllm.kv_transfer.stores import KVStore, Retention
from pyllm.kv_transfer.tier_figures import REPORT_SECONDS
from pyllm.wire.messages import Call, FinishCode, Rejected, Reply, TransferResults
from tests.core.offering_connector import OfferingConnector
from tests.core.raw_engine import EPOCH, Engine
from tests.core.remembering_executor import BLOCK_SIZE, RememberingExecutor
from tests.core.transferring_executor import TransferringExecutor
from tests.kv_transfer.dict_store import DictStore, forget_all
from tests.kv_transfer.faulty_store import FaultyStore

CONTEXT = ConnectorContext(namespace=bytes(32), block_size=BLOCK_SIZE, num_ranks=1, rank=0)
LOAD_TIMEOUT = 5.0


@pytest.fixture(autouse=True)
def empty_stores() -> None:
    forget_all()


def transfer_config(retention: Retention = "default", **keys: Any) -> KVTransferConfig:
    extra = {"store": "unused:here", "load_timeout": LOAD_TIMEOUT, "lookup_timeout": 20.0, "staging_bytes": 1024}
    extra |= {"retention": retention}
    return KVTransferConfig(kv_connector="StoreConnector", kv_connector_extra_config=extra, **keys)


class ThreadedEngine(Engine):
    """Beside real threads its clock goes slowly, so that they can do what takes them no time."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.001))


class Stored:
    """An engine with a store connector; `store` outlives it."""

    def __init__(
        self,
        store: KVStore,
        num_blocks: int = 64,
        depth: int = 2,
        retention: Retention = "default",
        half: type[StoreLookup] = StoreLookup,
        **keys: Any,
    ) -> None:
        config = transfer_config(retention, **keys)
        self.executor = TransferringExecutor(
            lambda: StoreTransfer(config, CONTEXT, store, clock=lambda: self.engine.now), num_blocks
        )
        self.connector = half(config, CONTEXT, store, clock=lambda: self.engine.now)
        self.engine = ThreadedEngine(
            self.executor,
            depth=depth,
            connector=self.connector,
            max_saving_blocks=8,
            max_restarts=1000,
            kv_transfer_config={"kv_connector": "StoreConnector", **keys},
        )

    async def run(self, request: int, prompt: list[int], **fields: Any) -> list[int]:
        await self.start()
        self.engine.submit(request, prompt, **fields)
        await self.engine.run_dry()
        tokens, _ = self.engine.outputs()[request]
        return tokens

    async def start(self) -> None:
        """Once, before the first step."""
        if self.executor._transfers is None:
            await self.executor.collective("register_kv_caches", "")

    def close(self) -> None:
        self.executor.close_transfers()
        self.engine.core.close()


async def expected(prompt: list[int], **fields: Any) -> list[int]:
    """The answer of an engine without a connector."""
    engine = Engine(RememberingExecutor())
    engine.submit(1, prompt, **fields)
    await engine.run_dry()
    return engine.outputs()[1][0]


async def test_what_one_engine_saved_another_loads_and_answers_alike() -> None:
    prompt = list(range(30))
    first = Stored(DictStore("a"))
    answer = await first.run(1, prompt, max_tokens=6)
    first.close()
    assert answer == await expected(prompt, max_tokens=6)
    num_full = (len(prompt) + 6 - 1) // BLOCK_SIZE
    assert len(DictStore("a").blocks) == num_full
    second = Stored(DictStore("a"))
    assert await second.run(1, prompt, max_tokens=6) == answer
    stats = second.engine.core.stats()
    assert stats["num_kv_loaded_tokens"] == 28
    computed = [len(context) for contexts in second.executor.contexts for context in contexts]
    assert computed[0] == len(prompt), "the first step reads what was loaded, and computes the rest"
    assert stats["num_computed_tokens"] == 2 + 5
    assert (stats["num_saving_blocks"], stats["num_used_blocks"], stats["num_held"]) == (0, 0, 0)
    second.close()


async def test_the_figures_of_the_stores_tiers_reach_a_client_though_no_step_follows() -> None:
    first = Stored(DictStore("figures"))
    await first.run(1, list(range(14)), max_tokens=1)
    first.close()
    stored = Stored(DictStore("figures"))
    stored.connector._tiers._store = DictStore("of the core")  # Each half opens the store by itself.
    await stored.run(1, list(range(30)), max_tokens=1)
    rank = stored.executor._transfers._connector  # type: ignore[union-attr]
    assert isinstance(rank, StoreTransfer)
    rank._writer.submit(bool).result()  # What was copied is saved.
    stored.engine.now += REPORT_SECONDS
    for number in range(2):  # The first has the rank look at its store.
        stored.engine.receive(Call(EPOCH, number, "stats"))
        await stored.engine.core._transfers.wait()
        rank._writer.submit(bool).result()
    stored.engine.receive(Call(EPOCH, 2, "stats"))
    *_, reply = stored.engine.messages(Reply)
    assert (reply.value["kv_tier_dict_num_saved"], reply.value["kv_tier_dict_num_loaded"]) == (4, 3)
    await stored.engine.core._transfers.wait()
    stored.close()
    assert "kv_tier_dict_num_saved" not in Engine().core.stats()


@pytest.mark.parametrize(("role", "num_saved", "num_loaded"), [("kv_producer", 7, 0), ("kv_consumer", 0, 0)])
async def test_a_producer_only_saves_and_a_consumer_only_loads(role: str, num_saved: int, num_loaded: int) -> None:
    stored = Stored(DictStore("role"), kv_role=role)
    await stored.run(1, list(range(30)), max_tokens=1)
    stored.engine.core._scheduler.reset_prefix_cache()
    await stored.run(2, list(range(30)), max_tokens=1)
    stored.close()
    assert len(DictStore("role").blocks) == num_saved
    assert stored.engine.core.stats().get("num_kv_loaded_tokens", 0) == num_loaded


@pytest.mark.parametrize("settings", ["none", "default", "long"])
async def test_each_request_says_how_long_its_blocks_are_kept(settings: Retention) -> None:
    """`default` is what the settings say; what a request finds on the device is kept as long as it wants."""
    store = DictStore("retentions")
    stored = Stored(store, retention=settings)
    asked: list[tuple[int, Retention]] = [
        (1, "none"),
        (2, "default"),
        (3, "long"),
        (4, "none"),
        (4, "long"),
        (3, "none"),
    ]
    for number, (text, retention) in enumerate(asked):
        await stored.run(number, [text] * 29, max_tokens=1, kv_cache_retention=retention)
    num_unsaved = stored.engine.core.stats()["num_kv_unsaved_blocks"]
    stored.close()
    num_default = 0 if settings == "none" else 7
    assert Counter(store.retentions.values()) == Counter({settings: num_default}) + Counter({"long": 14})
    assert num_unsaved == 0


async def test_what_was_loaded_is_kept_longer_for_whoever_wants_it() -> None:
    first = Stored(DictStore("loaded"))
    await first.run(1, list(range(30)), max_tokens=1)
    first.close()
    for retention, kept in (("none", {}), ("default", {}), ("long", {"long": 7})):
        store = DictStore("loaded")
        stored = Stored(store)
        await stored.run(1, list(range(30)), max_tokens=1, kv_cache_retention=retention)
        assert stored.engine.core.stats()["num_kv_loaded_tokens"] == 28
        stored.close()
        assert Counter(store.retentions.values()) == kept


async def test_a_failed_load_ends_its_request_where_the_policy_says_so() -> None:
    prompt = list(range(30))
    first = Stored(DictStore("fail"))
    await first.run(1, prompt, max_tokens=1)
    first.close()
    store = FaultyStore(DictStore("fail"), seed=1, rate=0.0)
    second = Stored(store, kv_load_failure_policy="fail")
    await second.start()
    store.load = lambda keys, into: [False] * len(keys)  # type: ignore[method-assign]
    second.engine.submit(1, prompt, max_tokens=1)
    await second.engine.run_dry()
    (rejected,) = second.engine.messages(Rejected)
    assert "28 of 28 tokens to load from outside did not come" in rejected.message
    assert second.engine.outputs()[1][1] == FinishCode.ABORT
    second.close()


async def test_a_load_that_comes_too_late_writes_nothing() -> None:
    prompt = list(range(30))
    first = Stored(DictStore("late"))
    answer = await first.run(1, prompt, max_tokens=6)
    first.close()
    store = FaultyStore(DictStore("late"), seed=1, rate=0.0)
    second = Stored(store, num_blocks=16)
    await second.start()
    store._fault = lambda *kinds: "stuck" if "stuck" in kinds else ""  # type: ignore[method-assign]
    assert await second.run(1, prompt, max_tokens=6) == answer
    assert store.num_stuck == 1
    assert second.engine.now >= LOAD_TIMEOUT
    other = [1, 2, 3] * 9
    store._fault = lambda *kinds: ""  # type: ignore[method-assign]
    second.engine.submit(2, other, max_tokens=6)
    await second.engine.core.step()
    store.let_go()  # Its blocks belong to others by now.
    await second.engine.run_dry()
    assert second.engine.outputs()[2][0] == await expected(other, max_tokens=6)
    second.close()


async def test_a_store_that_cannot_be_opened_after_a_death_costs_its_hits_and_is_tried_again() -> None:
    prompt, other = list(range(30)), list(range(40, 70))
    stored = Stored(DictStore("gone"), depth=1)
    answer = await stored.run(1, prompt, max_tokens=6)
    make, stored.executor._make = stored.executor._make, refuse
    stored.engine.submit(2, other, max_tokens=6)
    await stored.engine.core.step()
    stored.executor.kill("killed")
    stored.engine.submit(3, prompt, max_tokens=6)  # It is looked for, and maybe offered, before the core hears of it.
    await stored.engine.run_dry()
    outputs = stored.engine.outputs()
    assert (outputs[2][0], outputs[3][0]) == (await expected(other, max_tokens=6), answer)
    stats = stored.engine.core.stats()
    assert (stats["num_kv_connector_failures"], stored.executor.num_restarts) == (1, 1)
    assert (stats["num_kv_loaded_tokens"], stats["num_held"], stats["num_saving_blocks"]) == (0, 0, 0)
    stored.executor._make = make
    stored.executor.kill("killed")
    stored.engine.submit(4, prompt, max_tokens=6)
    await stored.engine.run_dry()
    assert stored.engine.outputs()[4][0] == answer
    stored.engine.scheduler.reset_prefix_cache()
    stored.engine.submit(5, prompt, max_tokens=6)
    await stored.engine.run_dry()
    assert stored.engine.outputs()[5][0] == answer
    stats = stored.engine.core.stats()
    # Request 4 was looked for when the new ranks were there.
    assert (stats["num_kv_connector_failures"], stats["num_kv_loaded_tokens"]) == (1, 56)
    stored.close()


async def test_prompt_and_output_of_a_running_request_are_loaded_after_a_death() -> None:
    prompt, store = list(range(30)), DictStore("recovery")
    first = Stored(store)
    answer = await first.run(1, prompt, max_tokens=60)
    first.close()
    second = Stored(store, depth=1)
    await second.start()
    second.engine.submit(1, prompt, max_tokens=60)
    while 1 not in second.engine.outputs() or len(second.engine.outputs()[1][0]) < 23:
        await second.engine.core.step()
    before = second.engine.core.stats()
    second.executor.kill("killed")
    await second.engine.run_dry()
    assert second.engine.outputs()[1][0] == answer
    after = second.engine.core.stats()
    assert (before["num_kv_loaded_tokens"], after["num_kv_loaded_tokens"]) == (28, 28 + 52)
    num_again = len(prompt) + 23 - 52
    assert after["num_computed_tokens"] - before["num_computed_tokens"] == num_again + 60 - 24
    second.close()


def refuse() -> StoreTransfer:
    raise ConfigError("the folder is gone")


def failing(method: str) -> type[StoreLookup]:
    """A connector's half in the core that fails in one of its methods; `metadata`: gives what is no bytes."""

    def fail(self: StoreLookup, *args: Any) -> Any:
        raise LookupError("a bug of the connector")

    if method == "metadata":
        return type("Failing", (StoreLookup,), {"build_connector_meta": lambda self, output: "text"})
    return type("Failing", (StoreLookup,), {method: fail})


@pytest.mark.parametrize(
    "method",
    [
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
        "metadata",
        "update_connector_output",
        "request_finished",
    ],
)
async def test_the_core_goes_on_without_a_connector_that_fails_in_it(method: str) -> None:
    store, prompts = DictStore("failing"), [list(range(30)), list(range(40, 70)), [*range(20), 7, 7]]
    first = Stored(store)
    await first.run(1, prompts[0], max_tokens=6)
    first.close()
    stored = Stored(store, half=failing(method))
    for number, prompt in enumerate(prompts):
        assert await stored.run(number, prompt, max_tokens=6) == await expected(prompt, max_tokens=6)
    stats = stored.engine.core.stats()
    assert (stats["num_kv_connector_failures"], stored.executor.num_restarts) == (1, 1)
    assert (stats["num_used_blocks"], stats["num_saving_blocks"], stats["num_held"]) == (0, 0, 0)
    assert stats["num_quarantine_failures"] == 0
    stored.close()


class Endless(StoreTransfer):
    """Never says that a save or load has ended."""

    def get_finished(self) -> tuple[set[int], set[int]]:
        return set(), set()


@pytest.mark.parametrize("kind", ["save", "load"])
async def test_ranks_in_which_a_transfer_never_ends_are_started_anew(kind: str) -> None:
    store, prompt = DictStore("endless"), list(range(30))
    if kind == "load":
        first = Stored(store)
        await first.run(1, prompt, max_tokens=6)
        first.close()
    stored, halves, config = Stored(store), iter([Endless]), transfer_config()
    stored.executor._make = lambda: next(halves, StoreTransfer)(config, CONTEXT, store, clock=lambda: stored.engine.now)
    assert await stored.run(2, prompt, max_tokens=6) == await expected(prompt, max_tokens=6)
    assert (stored.executor.num_restarts, stored.engine.core.stats()["num_quarantine_failures"]) == (1, 0)
    assert stored.engine.now >= TRANSFER_SECONDS
    stored.close()


class Ranks:
    """Two ranks that end loads when they are told to, with the blocks that failed."""

    death = None

    def __init__(self) -> None:
        self.results: list[list[TransferResults | None]] = []

    async def collective(self, method: str, *args: Any) -> list[bytes]:
        return [msgspec.msgpack.encode(results) for results in self.results.pop(0)]


def offered(now: float) -> tuple[KVTransfers, Scheduler, OfferingConnector, Ranks, list[float]]:
    """Transfers of a request of 4 blocks, for two ranks, whose clock shows what the list holds."""
    scheduler = Scheduler(
        block_size=BLOCK_SIZE, num_blocks=32, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, vocab_size=99
    )
    clock = [now]
    connector, ranks = OfferingConnector(), Ranks()
    transfers = KVTransfers(
        scheduler,
        ranks,  # type: ignore[arg-type]  # All of an executor that is called.
        connector,
        config=transfer_config(),
        namespace="",
        num_ranks=2,
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


@pytest.mark.parametrize("seed", range(4))
async def test_no_fault_of_a_store_gives_a_wrong_token(seed: int) -> None:
    """Requests of few prefixes, aborts, deaths and restarts, and a store of which every third call fails."""
    chance = random.Random(seed)
    answers: dict[tuple[int, ...], list[int]] = {}
    store = FaultyStore(DictStore(f"faulty {seed}"), seed, rate=0.3)
    stored = Stored(store, num_blocks=chance.choice([24, 40]), depth=chance.choice([1, 2]))
    await stored.start()
    number, num_loaded, asked = 0, 0, {}
    for _ in range(2500):
        match chance.choices(("submit", "step", "abort", "die", "restart", "let go"), (20, 70, 3, 1, 0.5, 5))[0]:
            case "submit" if stored.engine.scheduler.stats()["num_requests"] < 6:
                number += 1
                first, second = [chance.randrange(3)], [chance.randrange(2)]
                prompt = first * chance.randrange(1, 30) + second * chance.randrange(1, 20)
                asked[number] = tuple(prompt)
                stored.engine.submit(number, prompt, max_tokens=5)
            case "step":
                await stored.engine.core.step()
            case "abort" if asked:
                aborted = chance.choice(list(asked))
                stored.engine.core._scheduler.abort(0, aborted)
            case "die":
                stored.executor.kill("killed")
            case "restart":
                num_loaded += await checked(stored, asked, answers)
                stored.close()
                stored = Stored(store, num_blocks=chance.choice([24, 40]), depth=chance.choice([1, 2]))
                await stored.start()
                asked = {}
            case "let go":
                store.let_go()
                stored.engine.now += 1.0
    num_loaded += await checked(stored, asked, answers)
    stored.close()
    assert num_loaded > 100
    assert store.num_faults > 50


async def checked(stored: Stored, asked: dict[int, tuple[int, ...]], answers: dict[tuple[int, ...], list[int]]) -> int:
    """Let all requests end, and compare them with what they should be; gives the tokens that were loaded."""
    await stored.engine.run_dry()
    outputs = stored.engine.outputs()
    for number, prompt in asked.items():
        if prompt not in answers:
            answers[prompt] = await expected(list(prompt), max_tokens=5)
        tokens, finish = outputs[number]
        if finish == FinishCode.LENGTH:
            assert tokens == answers[prompt]
        else:
            assert finish == FinishCode.ABORT
            assert tokens == answers[prompt][: len(tokens)]
    stats = stored.engine.core.stats()
    assert (stats["num_used_blocks"], stats["num_requests"], stats["num_loading"], stats["num_held"]) == (0, 0, 0, 0)
    return stats["num_kv_loaded_tokens"]
