"""What a client gets to a `Call`, through the wire's encoding."""

import asyncio
import logging
from array import array
from typing import Any

import pytest

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.core.calls import MAX_EVENTS, Calls
from pyllm.core.executors.host_inventory import HostInventory
from pyllm.core.kept_state import KeptState
from pyllm.core.policy_plugins import GROUP
from pyllm.core.profiling import Profiling
from pyllm.core.sleeping import Sleeping
from pyllm.wire.messages import PROTOCOL_VERSION as VERSION
from pyllm.wire.messages import FinishCode, Hello
from pyllm.wire.supervision_messages import Kept
from tests.core.fake_distribution import install
from tests.core.raw_engine import EPOCH, Engine


def int32(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


async def test_explain_tells_of_the_callers_own_request() -> None:
    engine = Engine(max_num_seqs=1)
    engine.receive(Hello(VERSION), b"other")
    for request in (1, 2):
        engine.submit(request, [request, 5], max_tokens=9)
    await engine.core.step()
    (running,) = engine.call("explain", 1).value
    assert (running["state"], running["num_tokens"], running["reason"]) == ("running", 2, None)
    (waiting,) = engine.call("explain", 2).value
    assert (waiting["state"], waiting["reason"]) == ("waiting", "slots")
    foreign = engine.call("explain", 1, identity=b"other")
    assert (foreign.ok, foreign.value) == (
        False,
        "explain: client 1 has no live request 1; it has finished or was never added",
    )


async def test_decisions_are_those_of_the_last_steps() -> None:
    engine = Engine()
    engine.submit(1, [1, 2], max_tokens=5)
    await engine.run_dry()
    last, nothing = engine.call("decisions", 2).value
    assert (last["step"], last["num_rows"], last["stop"]) == (4, 1, None)
    assert (nothing["step"], nothing["num_rows"]) == (5, 0)
    assert [decision["step"] for decision in engine.call("decisions").value] == [0, 1, 2, 3, 4, 5]


async def test_tenants_have_their_service() -> None:
    engine = Engine(scheduling_policy="fair")
    engine.submit(1, [1, 2], max_tokens=2, tenant="acme")
    await engine.core.step()
    assert engine.call("tenants").value == [["acme", 4, 0]]


async def test_reconfigure_changes_what_it_names_and_gives_what_is() -> None:
    engine = Engine(max_num_seqs=1, tenant_weights="acme=2")
    changed = engine.call("reconfigure", {"scheduling_policy": "priority", "max_num_batched_tokens": 8})
    assert changed.ok
    assert (
        changed.value
        == engine.call("reconfigure", {}).value
        == {
            "max_num_batched_tokens": 8,
            "long_prefill_token_threshold": 0,
            "inter_token_target": 0.0,
            "scheduling_policy": "priority",
            "tenant_weights": {"acme": 2},
            "watermark": 0.0,
            "expected_growth": 0.0,
        }
    )
    engine.submit(1, list(range(20)), max_tokens=1, priority=2)
    engine.submit(2, [5], max_tokens=1, priority=1)
    await engine.run_dry()
    assert [list(plan["tokens"]) for plan in engine.executor.plans][:2] == [[5], list(range(8))]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_num_seqs": 4}, "'max_num_seqs' cannot change while the engine runs; these can: max_num_batched_tokens"),
        ({"weights_version": "2"}, "cannot change"),
        ({3: 4}, "changes: Expected `str`, got `int`"),
        ({"watermark": 2}, "watermark"),
        ({"watermark": float("nan")}, "watermark"),
        ({"expected_growth": "much"}, "expected_growth"),
        ({"tenant_weights": {"acme": 0}}, "tenant_weights"),
        ({"tenant_weights": "acme"}, "team-a=3"),
        ({"max_num_batched_tokens": 17}, "steps of 16 tokens, not 17"),
        ({"scheduling_policy": "fsfc"}, "there are fcfs, priority, shortest, fair"),
        ({"scheduling_policy": 3}, "scheduling_policy"),
        ([("watermark", 0.1)], "changes: Expected `object`, got `array`"),
        (None, "changes: Expected `object`, got `null`"),
    ],
)
async def test_a_setting_that_cannot_be_changes_nothing(changes: Any, text: str) -> None:
    engine = Engine()
    before = engine.call("reconfigure", {}).value
    reply = engine.call("reconfigure", changes)
    assert not reply.ok
    assert text in reply.value
    assert engine.call("reconfigure", {}).value == before


@pytest.mark.parametrize(("block_size", "least"), [(4, 16), (64, 64)])
async def test_steps_become_smaller_down_to_a_bound_until_a_client_says_otherwise(block_size: int, least: int) -> None:
    engine = Engine(block_size=block_size, max_num_batched_tokens=100)
    calls = calls_of(engine, engine_config({"block_size": block_size, "max_num_batched_tokens": 100}))
    assert [calls.halve_budget() for _ in range(5)][-1] is False
    assert calls.answer(0, "reconfigure", ({},))["max_num_batched_tokens"] == least
    engine.submit(1, list(range(100)))
    await engine.core.step()
    assert engine.executor.plans[-1]["tokens"].size == least
    calls.answer(0, "reconfigure", ({"max_num_batched_tokens": 100},))
    assert calls.halve_budget()


async def test_steps_of_whole_prompts_stay_as_large_as_the_longest() -> None:
    engine = Engine(whole_prompts=True, max_num_batched_tokens=128)
    calls = calls_of(engine, engine_config({"max_num_batched_tokens": 128}))
    assert not calls.halve_budget()
    assert calls.answer(0, "reconfigure", ({},))["max_num_batched_tokens"] == 128


def calls_of(engine: Engine, config: EngineConfig) -> Calls:
    profiling = Profiling(engine.executor, lambda: 0, clock=lambda: 0.0, sleep=engine.sleep)
    kept = KeptState(engine.scheduler, Kept(), lambda kept: None)
    inventory = HostInventory(engine.scheduler, engine.executor)
    return Calls(
        engine.scheduler,
        config,
        None,
        dict,
        lambda: 0.0,
        profiling=profiling,
        adapters=engine.core._adapters,
        pausing=engine.core._pausing,
        weights=engine.core._weights,
        sleeping=Sleeping(
            engine.scheduler,
            engine.executor,
            engine.core._pausing,
            changing=asyncio.Lock(),
            refusal="",
            on_device=False,
        ),
        kept=kept,
        inventory=inventory,
        executor=engine.executor,
    )


async def test_a_policy_of_another_package_can_be_taken_while_the_engine_runs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = "def key(request): return -request.max_tokens"
    install(tmp_path, GROUP, {"longest": "longest_policy:key"}, longest_policy=policy)
    monkeypatch.syspath_prepend(str(tmp_path))
    engine = Engine(max_num_seqs=1)
    assert engine.call("reconfigure", {"scheduling_policy": "longest"}).ok
    engine.submit(1, [1], max_tokens=1)
    engine.submit(2, [2], max_tokens=2)
    await engine.run_dry()
    assert [int(plan["tokens"][0]) for plan in engine.executor.plans] == [2, 3, 1]


@pytest.mark.parametrize("level", ["DEBUG", "warning"])
async def test_the_log_level_is_a_setting_of_a_core_that_has_a_process(level: str) -> None:
    levels: list[str] = []
    engine = Engine(set_log_level=levels.append)
    assert engine.call("reconfigure", {"log_level": level, "watermark": 0.5}).value["watermark"] == 0.5
    assert levels == [level.upper()]
    assert engine.call("reconfigure", {}).value["log_level"] == logging.getLevelName(logging.getLogger().level)


@pytest.mark.parametrize("level", ["LOUD", "", 10, None, ["DEBUG"]])
async def test_what_is_no_log_level_changes_nothing(level: Any) -> None:
    levels: list[str] = []
    engine = Engine(set_log_level=levels.append)
    refused = engine.call("reconfigure", {"watermark": 0.5, "log_level": level})
    assert (refused.ok, "log_level must be one of DEBUG, INFO, WARNING, ERROR" in refused.value) == (False, True)
    assert not engine.call("reconfigure", {"watermark": 2, "log_level": "DEBUG"}).ok
    assert engine.call("reconfigure", {}).value["watermark"] == 0
    assert levels == []


async def test_a_core_in_an_applications_process_leaves_its_log_alone() -> None:
    refused = Engine().call("reconfigure", {"log_level": "DEBUG"})
    assert (refused.ok, "'log_level' cannot change" in refused.value) == (False, True)


async def test_a_forgotten_prefix_is_computed_again() -> None:
    engine = Engine()
    engine.submit(1, list(range(9)), max_tokens=1)
    await engine.run_dry()
    assert engine.call("reset_prefix_cache").ok
    assert engine.core.stats()["num_cached_blocks"] == 0


async def test_pins_come_and_go() -> None:
    engine = Engine(max_pinned_blocks=2)
    assert engine.call("pin", 7, int32(*range(9)), "acme").value == 2
    engine.submit(1, list(range(9)), max_tokens=1, tenant="acme")
    await engine.run_dry()
    assert engine.core.stats()["num_pinned_blocks"] == 2
    assert "max_pinned_blocks 2" in engine.call("pin", 8, int32(*range(9))).value
    assert "pin 7 exists" in engine.call("pin", 7, int32(*range(4))).value
    assert engine.call("unpin", 7).value is True
    assert engine.call("unpin", 7).value is False
    assert engine.core.stats()["num_pinned_blocks"] == 0


async def test_events_tell_what_came_and_went() -> None:
    engine = Engine(enable_kv_cache_events=True)
    engine.submit(1, list(range(9)), max_tokens=1)
    await engine.run_dry()
    incarnation, first, events = engine.call("kv_events", 0).value
    assert (incarnation, first) == (EPOCH, 0)
    assert [(kind, tokens, tier) for kind, _, _, tokens, tier, _ in events] == [
        ("stored", int32(0, 1, 2, 3), "device"),
        ("stored", int32(4, 5, 6, 7), "device"),
    ]
    assert events[1][2] == events[0][1]
    assert engine.call("kv_events", 0).value == [EPOCH, 0, events]
    assert engine.call("kv_events", 2).value == [EPOCH, 2, []]
    assert engine.call("kv_snapshot").value == [EPOCH, 2, events]
    engine.call("reset_prefix_cache")
    assert engine.call("kv_events", 2).value == [EPOCH, 2, [["cleared", b"", None, b"", "", 0]]]


async def test_events_and_snapshots_leave_out_tokens_where_they_are_not_wanted() -> None:
    engine = Engine(enable_kv_cache_events=True)
    engine.submit(1, list(range(9)), max_tokens=1)
    await engine.run_dry()
    for reply in (engine.call("kv_events", 0, False), engine.call("kv_snapshot", False)):
        assert [(kind, len(name), tokens) for kind, name, _, tokens, _, _ in reply.value[2]] == [
            ("stored", 32, b"")
        ] * 2


async def test_many_events_come_in_parts_without_a_gap() -> None:
    engine = Engine(enable_kv_cache_events=True)
    for _ in range(MAX_EVENTS + 3):
        engine.scheduler.reset_prefix_cache()
    starts = (0, MAX_EVENTS, MAX_EVENTS + 3, MAX_EVENTS + 9)
    numbers = [(first, len(events)) for _, first, events in (engine.call("kv_events", each).value for each in starts)]
    assert numbers == [(0, MAX_EVENTS), (MAX_EVENTS, 3), (MAX_EVENTS + 3, 0), (MAX_EVENTS + 3, 0)]


@pytest.mark.parametrize("method", ["kv_events", "kv_snapshot"])
async def test_events_that_are_not_kept_are_an_error(method: str) -> None:
    reply = Engine().call(method, *([0] if method == "kv_events" else []))
    assert (reply.ok, "enable_kv_cache_events" in reply.value) == (False, True)


@pytest.mark.parametrize(
    ("method", "args", "text"),
    [
        ("explain", (), "missing a required argument: 'request'"),
        ("explain", (1, 2), "too many positional arguments"),
        ("explain", ("one",), "request"),
        ("explain", (-1,), "request is -1"),
        ("explain", (None,), "request"),
        ("decisions", (-1,), "limit is -1"),
        ("decisions", ("all",), "limit"),
        ("tenants", (1,), "too many positional arguments"),
        ("reconfigure", (), "missing a required argument: 'changes'"),
        ("pin", (1,), "missing a required argument: 'prompt'"),
        ("pin", (1, [1, 2]), "prompt"),
        ("pin", (1, "AAAAAAAAAAAAAAAAAAAAAA=="), "prompt: Expected `bytes`, got `str`"),
        ("pin", (1, b"123"), "prompt has 3 bytes"),
        ("pin", (1, int32(-1)), "prompt has token -1"),
        ("pin", (2**63, b"", 3), "tenant"),
        ("pin", (-1, b""), "name is -1"),
        ("pin", (1, int32(1), "", "", "lora"), "adapter 'lora': start the engine with enable_lora"),
        ("unpin", (1.5,), "name"),
        ("stats", ({"a": [1]},), "too many positional arguments"),
        ("__init__", (), "unknown method"),
    ],
)
async def test_wrong_arguments_are_answered_and_the_core_goes_on(
    method: str, args: tuple[Any, ...], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    with caplog.at_level(logging.WARNING):
        reply = engine.call(method, *args)
    assert not reply.ok
    assert text in reply.value
    assert caplog.records == []
    engine.submit(1, [5])
    await engine.run_dry()
    assert engine.outputs() == {1: ([6, 7, 8, 9], FinishCode.LENGTH)}


async def test_requests_of_all_clients_with_their_ages() -> None:
    engine = Engine(max_num_seqs=1)
    engine.receive(Hello(VERSION), b"other")
    engine.submit(1, [1, 5], max_tokens=2, name="cmpl-1", age=3.0)
    engine.submit(2, [2, 5], max_tokens=2, tenant="acme")
    await engine.core.step()
    running, waiting = engine.call("requests", identity=b"other").value
    assert (running["name"], running["samples"][0]["state"], running["ended_age"]) == ("cmpl-1", "running", None)
    assert (waiting["tenant"], waiting["samples"][0]["reason"], waiting["scheduled_age"]) == ("acme", "slots", None)
    assert running["age"] - waiting["age"] == pytest.approx(3.0, abs=1e-3)
    await engine.run_dry()
    latest, first = engine.call("requests").value
    assert [(report["request"], report["finish"], report["samples"]) for report in (latest, first)] == [
        (2, "length", []),
        (1, "length", []),
    ]
    assert 0 <= latest["ended_age"] <= first["ended_age"] <= first["age"]
    assert len(engine.call("requests", 1).value) == 1
    assert [report["request"] for report in engine.call("requests", 9, "cmpl-1").value] == [1]


async def test_blocks_have_owners() -> None:
    engine = Engine()
    engine.submit(1, list(range(9)), max_tokens=3, tenant="acme")
    await engine.core.step()
    owners = engine.call("block_owners").value
    assert owners["tenants"].keys() == {"acme"}
    total = sum(owners["tenants"].values()) + owners["pinned"] + owners["in_transit"] + owners["free"]
    assert total == engine.core.stats()["num_blocks"]


async def test_a_change_is_logged_before_the_level_may_hide_it(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    engine = Engine(set_log_level=lambda level: seen.append(caplog.text))
    with caplog.at_level(logging.INFO):
        assert engine.call("reconfigure", {"log_level": "ERROR"}).ok
        assert engine.call("reconfigure", {}).ok
    assert "client 0 changed settings: {'log_level': 'ERROR'}" in seen[0]
    assert len(caplog.records) == 1


async def test_a_change_back_to_a_level_that_shows_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    engine, level = Engine(set_log_level=root.setLevel), root.level
    root.setLevel(logging.ERROR)
    try:
        assert engine.call("reconfigure", {"log_level": "INFO"}).ok
    finally:
        root.setLevel(level)
    assert [record.getMessage() for record in caplog.records] == ["client 0 changed settings: {'log_level': 'INFO'}"]
