"""Loads and saves through the core, with a model that reads what its blocks hold and a store that fails."""

import random
from collections import Counter
from typing import Any

import pytest

from pyllm.errors import ConfigError
from pyllm.kv_transfer import TRANSFER_SECONDS
from pyllm.kv_transfer.store_lookup import StoreLookup
from pyllm.kv_transfer.store_transfer import StoreTransfer
from pyllm.kv_transfer.stores.store import Retention
from pyllm.kv_transfer.tier_figures import REPORT_SECONDS
from pyllm.wire.messages import Call, FinishCode, Rejected, Reply, TransferStats
from tests.core.raw_engine import EPOCH, Engine
from tests.core.remembering_executor import BLOCK_SIZE
from tests.core.stored_engine import (
    CONTEXT,
    LOAD_TIMEOUT,
    Stored,
    expected,
    run_random_requests,
    transfer_config,
)
from tests.kv_transfer.dict_store import DictStore, forget_all
from tests.kv_transfer.faulty_store import FaultyStore
from tests.tiers import full


@pytest.fixture(autouse=True)
def empty_stores() -> None:
    forget_all()


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
    assert stats["num_kv_loaded_tokens"] == stats["prefix_hits"] == stats["loaded_prefix_hits"] == 28
    computed = [len(context) for contexts in second.executor.contexts for context in contexts]
    assert computed[0] == len(prompt), "the first step reads what was loaded, and computes the rest"
    assert stats["num_computed_tokens"] == 2 + 5
    assert (stats["num_saving_blocks"], stats["num_used_blocks"], stats["num_held"]) == (0, 0, 0)
    second.close()


async def test_the_figures_of_the_stores_tiers_reach_a_client_though_no_step_follows() -> None:
    first = Stored(DictStore("figures"))
    await first.run(1, list(range(14)), max_tokens=1)
    first.close()
    stored = Stored(DictStore("figures"), core_store=DictStore("figures"))  # Each half opens it by itself.
    await stored.run(1, list(range(30)), max_tokens=1)
    figures: dict[str, int] = {}
    while figures.get("kv_store_dict_num_saved") != 4:
        stored.engine.now += REPORT_SECONDS
        stored.engine.receive(Call(EPOCH, 1, "stats"))
        *_, reply = stored.engine.messages(Reply)
        figures = reply.value
        await stored.engine.core._transfers.wait()
    assert figures["kv_store_dict_num_loaded"] == 3
    stored.close()
    assert "kv_store_dict_num_saved" not in Engine().core.stats()


async def test_a_producer_loads_nothing() -> None:
    stored = Stored(DictStore("role"), kv_role="kv_producer")
    for request in (1, 2):
        await stored.run(request, list(range(30)), max_tokens=1)
        stored.engine.scheduler.reset_prefix_cache()
    assert stored.engine.core.stats()["num_kv_loaded_tokens"] == 0
    stored.close()
    assert len(DictStore("role").blocks) == 7


async def test_a_consumer_loads_and_saves_nothing() -> None:
    first = Stored(DictStore("role"))
    await first.run(1, list(range(30)), max_tokens=1)
    first.close()
    consumer = Stored(DictStore("role"), kv_role="kv_consumer")
    await consumer.run(1, list(range(30)), max_tokens=1)
    await consumer.run(2, list(range(40, 70)), max_tokens=1)
    assert consumer.engine.core.stats()["num_kv_loaded_tokens"] == 28
    consumer.close()
    assert len(DictStore("role").blocks) == 7


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
    store = FaultyStore(DictStore("fail"), seed=1, rate=0.0)
    store.forced = "lie"
    stored = Stored(store, kv_load_failure_policy="fail")
    await stored.start()
    stored.engine.submit(1, list(range(30)), max_tokens=1)
    await stored.engine.run_dry()
    (rejected,) = stored.engine.messages(Rejected)
    assert "28 of 28 tokens to load from outside did not come" in rejected.message
    assert stored.engine.outputs()[1][1] == FinishCode.ABORT
    stored.close()


async def test_a_load_that_comes_too_late_writes_nothing() -> None:
    prompt = list(range(30))
    first = Stored(DictStore("late"))
    answer = await first.run(1, prompt, max_tokens=6)
    first.close()
    store = FaultyStore(DictStore("late"), seed=1, rate=0.0)
    second = Stored(store, num_blocks=16)
    await second.start()
    store.forced = "stuck"
    assert await second.run(1, prompt, max_tokens=6) == answer
    assert store.num_stuck == 1
    assert second.engine.now >= LOAD_TIMEOUT
    other = [1, 2, 3] * 9
    store.forced = ""
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
    make, stored.executor.make = stored.executor.make, refuse
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
    stored.executor.make = make
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


async def test_a_load_that_was_under_way_when_the_ranks_died_is_not_tried_again() -> None:
    """Else one of which they die would end all that come after them."""
    prompt, store = list(range(30)), FaultyStore(DictStore("fatal"), seed=1, rate=0.0)
    first = Stored(DictStore("fatal"))
    answer = await first.run(1, prompt, max_tokens=6)
    first.close()
    second = Stored(store)
    await second.start()
    store.forced = "stuck"
    second.engine.submit(1, prompt, max_tokens=6)
    while not store.num_stuck:
        await second.engine.core.step()
    second.executor.kill("crashed")
    store.let_go()
    await second.engine.run_dry()
    assert second.engine.outputs()[1][0] == answer
    stats = second.engine.core.stats()
    assert (second.executor.num_restarts, stats["num_kv_lookups"], stats["num_kv_loaded_tokens"]) == (1, 1, 0)
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


def failing_in_a_rank(method: str) -> type[StoreTransfer]:
    """A connector's half of a rank that fails in one of its methods; `figures`: gives what does not decode."""

    def fail(self: StoreTransfer, *args: Any) -> Any:
        raise LookupError("a bug of the connector")

    if method == "figures":
        stats = TransferStats(tiers={"mine": {"used_bytes": None}})  # type: ignore[dict-item]  # That is what is wrong.
        return type("Failing", (StoreTransfer,), {"get_kv_connector_stats": lambda self: stats})
    return type("Failing", (StoreTransfer,), {method: fail})


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "method",
    [
        "bind_connector_metadata",
        "start_load_kv",
        "wait_for_save",
        "clear_connector_metadata",
        "get_finished",
        "get_block_ids_with_load_errors",
        "get_kv_connector_stats",
        "figures",
    ],
)
async def test_the_core_goes_on_without_a_connector_that_fails_in_a_rank(method: str, depth: int) -> None:
    store, prompts = DictStore("failing"), [list(range(30)), list(range(40, 70)), [*range(20), 7, 7]]
    first = Stored(store)
    await first.run(1, prompts[0], max_tokens=6)
    first.close()
    stored, config, half = Stored(store, depth=depth), transfer_config(), failing_in_a_rank(method)
    stored.executor.make = lambda: half(config, CONTEXT, store, clock=lambda: stored.engine.now)
    await stored.start()
    for number, prompt in enumerate(prompts):
        stored.engine.submit(number, prompt, max_tokens=6)
        await stored.engine.run_dry()
        assert stored.engine.outputs()[number][0] == await expected(prompt, max_tokens=6)
    stats = stored.engine.core.stats()
    assert (stats["num_kv_connector_failures"], stored.executor.num_restarts) == (1, 1)
    assert (stats["num_used_blocks"], stats["num_saving_blocks"], stats["num_held"]) == (0, 0, 0)
    assert stats["num_quarantine_failures"] == 0
    stored.close()


async def test_seconds_that_are_no_number_are_left_out() -> None:
    stats = TransferStats(loaded_bytes=8, load_seconds=float("nan"))
    half = type("Odd", (StoreTransfer,), {"get_kv_connector_stats": lambda self: stats})
    stored, config = Stored(DictStore("odd")), transfer_config()
    stored.executor.make = lambda: half(config, CONTEXT, DictStore("odd"), clock=lambda: stored.engine.now)
    await stored.run(1, list(range(30)), max_tokens=1)
    figures = stored.engine.core.stats()
    assert (figures["kv_load_bytes_per_second"], figures["num_kv_connector_failures"]) == (0, 0)
    stored.close()


async def test_figures_that_fail_in_the_core_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    stored = Stored(DictStore("told once"), half=failing("get_tier_stats"))
    await stored.start()
    for _ in range(3):
        assert stored.engine.core.stats()["num_kv_connector_failures"] == 1
    assert len(caplog.records) == 2, "what was raised, and what follows from it"
    stored.close()


async def test_a_connector_that_cannot_give_up_what_it_holds_ends_nothing() -> None:
    stored = Stored(DictStore("shutdown"), half=failing("shutdown"))
    await stored.run(1, list(range(30)), max_tokens=1)
    stored.close()


class Endless(StoreTransfer):
    """Never says that a save or load has ended."""

    def get_finished(self) -> tuple[set[int], set[int]]:
        return set(), set()


@pytest.mark.parametrize("kind", ["save", full("load")])
async def test_ranks_in_which_a_transfer_never_ends_are_started_anew(kind: str) -> None:
    store, prompt = DictStore("endless"), list(range(30))
    if kind == "load":
        first = Stored(store)
        await first.run(1, prompt, max_tokens=6)
        first.close()
    stored, halves, config = Stored(store), iter([Endless]), transfer_config()
    stored.executor.make = lambda: next(halves, StoreTransfer)(config, CONTEXT, store, clock=lambda: stored.engine.now)
    assert await stored.run(2, prompt, max_tokens=6) == await expected(prompt, max_tokens=6)
    assert (stored.executor.num_restarts, stored.engine.core.stats()["num_quarantine_failures"]) == (1, 0)
    assert stored.engine.now >= TRANSFER_SECONDS
    stored.close()


@pytest.mark.parametrize("seed", range(4))
async def test_no_fault_of_a_store_gives_a_wrong_token(seed: int) -> None:
    """A third of the store's calls fail."""
    chance = random.Random(seed)
    store = FaultyStore(DictStore(f"faulty {seed}"), seed, rate=0.3)

    async def begin() -> Stored:
        stored = Stored(store, num_blocks=chance.choice([24, 40]), depth=chance.choice([1, 2]))
        await stored.start()
        return stored

    assert await run_random_requests(begin, store.let_go, chance, num_actions=2500) > 100
    assert store.num_faults > 50
