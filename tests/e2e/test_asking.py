"""What clients ask of a real core beyond tokens: deadlines, reasons, decisions, pins, events, other settings."""

import asyncio
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from pyllm import AsyncEngine, EngineClient, LLMEngine, SamplingParams, SchedulingParams
from pyllm.errors import RequestError
from tests.tiny_model import write_tiny_model

PREFIX = list(range(40))  # two full blocks, and a part of one
ENDLESS = SamplingParams(max_tokens=8000, ignore_eos=True)
BRIEF = SchedulingParams(timeout=0.05)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=8192)


async def test_a_running_engine_is_asked_and_changed(model: str) -> None:
    async with AsyncEngine(model, scheduling_policy="priority") as engine:
        expired = await engine.complete(PREFIX, ENDLESS, scheduling=BRIEF)
        assert expired.outputs[0].finish_reason == "deadline"
        assert len(expired.outputs[0].token_ids) < 8000
        assert (await engine.stats())["num_expired"] == 1
        running = engine.generate(PREFIX, ENDLESS, "mine", priority=-1)
        await anext(running)
        (sample,) = await engine.explain("mine")
        assert (sample.state, sample.reason, sample.hold) == ("running", None, None)
        assert sample.num_known > len(PREFIX)
        last = (await engine.decisions(1))[0]
        assert (last.num_rows, last.num_running, last.stop) == (1, 1, None)
        await running.aclose()
        assert (await engine.reconfigure(scheduling_policy="fair", watermark=0.1))["scheduling_policy"] == "fair"
        with pytest.raises(RequestError, match=r"'watermrk'.*watermark"):
            await engine.reconfigure(watermrk=0.1)
        assert (await engine.stats())["num_cached_blocks"] > 0
        await engine.reset_prefix_cache()
        assert (await engine.stats())["num_cached_blocks"] == 0
        with pytest.raises(RequestError, match="not running"):
            await engine.explain("mine")


async def test_a_client_pins_and_follows_the_cache(model: str, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/core"
    flags = ["--enable-kv-cache-events", "--max-pinned-blocks", "4", "--scheduling-policy", "fair"]
    core = subprocess.Popen(
        [sys.executable, "-m", "pyllm", "core", model, "--bind", address, *flags], stdout=subprocess.PIPE, text=True
    )
    client = await EngineClient.connect(address, timeout=90)
    assert await client.pin(7, PREFIX, tenant="acme") == 2
    with pytest.raises(RequestError, match="pin"):
        await client.pin(7, PREFIX)
    for tenant in ("acme", "other"):
        scheduling = SchedulingParams(tenant=tenant)
        async for delta in client.generate(PREFIX, SamplingParams(max_tokens=2, ignore_eos=True), scheduling):
            assert delta.tokens
    stats = await client.stats()
    assert (stats["num_pinned_blocks"], stats["num_cached_blocks"], stats["prefix_hits"]) == (2, 4, 0)
    events = await client.kv_events()
    assert [event.kind for event in events.events] == ["stored"] * 4
    first, second = events.events[:2]
    assert (first.parent, second.parent, first.tier) == (None, first.hash, "device")
    assert first.tokens + second.tokens == array("i", PREFIX[:32]).tobytes()
    snapshot = await client.kv_snapshot()
    assert (snapshot.incarnation, snapshot.first) == (events.incarnation, events.first + 4)
    assert {event.hash for event in snapshot.events} == {event.hash for event in events.events}
    assert (await client.unpin(7), await client.unpin(7)) == (True, False)
    assert {report.tenant for report in await client.tenants()} <= {"acme", "other"}
    client.close()
    core.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(core.wait, 60) == 0
    core.communicate()


def test_a_deadline_ends_a_request_of_an_engine_in_process(model: str) -> None:
    engine = LLMEngine(model)
    engine.add_request("late", PREFIX, ENDLESS, scheduling=BRIEF)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    engine.close()
    assert outputs[-1].outputs[0].finish_reason == "deadline"
