"""What a core does when its workers die."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.errors import GivenUpError, StartError
from pyllm.wire.messages import POOLING, PROTOCOL_VERSION, Abort, FinishCode, Heartbeat, Hello, Rejected, Sampling
from tests.core.counting_executor import DEATH, CountingExecutor
from tests.core.raw_engine import EPOCH, Engine
from tests.core.remembering_executor import RememberingExecutor
from tests.waiting import until


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("dies_at", range(5))
async def test_streams_go_on_with_the_same_tokens(depth: int, dies_at: int) -> None:
    engine = Engine(CountingExecutor(dies_at=[dies_at]), depth=depth)
    engine.submit(1, [1, 2], max_tokens=5)
    engine.submit(2, list(range(20, 60)), max_tokens=3)
    await engine.run_dry()
    assert engine.outputs() == {1: ([3, 4, 5, 6, 7], FinishCode.LENGTH), 2: ([60, 61, 62], FinishCode.LENGTH)}
    assert engine.executor.num_restarts == engine.core.stats()["num_recoveries"] == 1
    assert engine.executor.allocated == (64, 0, 0, 0)
    assert engine.messages(Rejected) == []


async def test_clients_are_told_at_once_that_it_recovers_and_why() -> None:
    engine = Engine(CountingExecutor(dies_at=[1]))
    engine.submit(1, [1, 2])
    await engine.run_dry()
    assert engine.messages(Heartbeat) == [Heartbeat("recovering", 0, DEATH), Heartbeat("ready", 0)]


async def test_a_worker_that_dies_with_nothing_to_do_is_replaced() -> None:
    engine = Engine()
    running = asyncio.ensure_future(engine.core.run())
    await asyncio.sleep(0)
    engine.executor.die("killed")
    engine.core.beat()
    await until(lambda: engine.executor.death is None)
    assert (engine.executor.num_restarts, engine.core.stats()["num_suspects"]) == (1, 0)
    running.cancel()


class UnstartableExecutor(CountingExecutor):
    """Dies at once, and its first new ranks do not start; the next wait for `goes_on`."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__(dies_at=[1])
        self.failures = list(failures)
        self.goes_on = asyncio.Event()

    async def restart(self) -> None:
        if self.failures:
            raise self.failures.pop()
        await self.goes_on.wait()
        await super().restart()


async def test_what_fails_meanwhile_is_one_more_failure_and_waits_longer() -> None:
    engine = Engine(UnstartableExecutor(StartError("it fell"), StartError("it stumbled")))
    engine.executor.goes_on.set()
    engine.submit(1, [1, 2])
    await engine.run_dry()
    assert engine.outputs() == {1: ([3, 4, 5, 6], FinishCode.LENGTH)}
    assert engine.now == pytest.approx(0.1 + 0.2)
    assert engine.core.stats()["num_recoveries"] == 1


async def test_the_mailbox_is_open_while_it_recovers() -> None:
    engine = Engine(UnstartableExecutor())
    engine.submit(1, [1, 2])
    engine.submit(2, [11, 12], max_tokens=9, timeout=1.0)
    engine.submit(3, [21, 22], max_tokens=9)
    running = asyncio.ensure_future(engine.core.run())
    await until(lambda: bool(engine.messages(Heartbeat)))
    engine.receive(Abort(EPOCH, 3))
    assert engine.outputs()[3] == ([23], FinishCode.ABORT)
    engine.now = 1.0
    engine.core.beat()
    assert engine.outputs()[2] == ([13], FinishCode.DEADLINE)
    engine.submit(4, [31, 32], max_tokens=1)
    assert engine.call("stats").value["num_requests"] == 2
    engine.receive(Hello(PROTOCOL_VERSION), b"another")
    assert engine.sent[-1] == (b"another", Heartbeat("recovering", 0, DEATH))
    engine.core.drain()
    engine.executor.goes_on.set()
    await running
    assert engine.outputs()[1] == ([3, 4, 5, 6], FinishCode.LENGTH)
    assert engine.outputs()[4] == ([33], FinishCode.LENGTH)
    assert engine.messages(Heartbeat)[-1] == Heartbeat("draining", 0, "the engine is shutting down")


async def test_workers_that_die_too_often_are_given_up_and_no_stream_is_ended() -> None:
    engine = Engine(UnstartableExecutor(*3 * [StartError("it fell")]), max_restarts=2)
    engine.submit(1, [1, 2])
    with pytest.raises(GivenUpError, match=r"more than 2 times within 60 s.* max_restarts.*: it fell"):
        await engine.core.run()
    assert engine.messages(Rejected) == []
    assert engine.outputs() == {1: ([3], FinishCode.NONE)}


async def test_new_workers_with_less_room_allocate_what_there_was(caplog: pytest.LogCaptureFixture) -> None:
    executor = CountingExecutor(dies_at=[1])
    engine = Engine(executor)
    engine.submit(1, [1, 2])
    executor.num_blocks = 60
    await engine.run_dry()
    assert executor.allocated == (64, 0, 0, 0)
    assert "room for 60 KV blocks and must allocate 64" in caplog.text


@pytest.mark.parametrize("prompts", [False, True])
async def test_a_crash_is_reported_without_tokens_unless_they_are_asked_for(prompts: bool) -> None:
    reports: list[tuple[str, Mapping[str, bytes]]] = []
    engine = Engine(
        CountingExecutor(dies_at=[2]),
        depth=2,
        on_crash=lambda name, parts: reports.append((name, parts)),
        flight_recorder_prompts=prompts,
    )
    engine.submit(1, [123, 456], max_tokens=5)
    await engine.run_dry()
    ((name, parts),) = reports
    assert name == "worker-killed"
    assert parts.keys() == {"report.json", "config.json", "worker.log"} | ({"tokens.json"} if prompts else set())
    report = json.loads(parts["report.json"])
    assert (report["cause"], report["death"], report["epoch"]) == ("killed", DEATH, EPOCH)
    assert report["steps_in_flight"] == [2]
    assert [(one["client"], one["request"]) for one in report["suspects"]] == [(0, 1)]
    assert [one["step"] for one in report["decisions"]] == [0, 1, 2]
    assert json.loads(parts["config.json"])["scheduler"]["max_num_seqs"] == 8
    assert parts["worker.log"] == b"last words"
    if prompts:
        (tokens,) = json.loads(parts["tokens.json"])
        assert (tokens["prompt"], tokens["outputs"]) == ([123, 456], [[457, 458]])
    else:
        assert not any(b"456" in part for part in parts.values())


REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.tuples(st.sampled_from([0, 100]), st.integers(1, 40)).map(lambda it: [*range(it[0], sum(it))]),
        "max_tokens": st.integers(1, 12),
        "n": st.integers(1, 4),
        "seed": st.integers(0, 2**64 - 1),
        "kind": st.sampled_from(["plain", "plain", "stateful", "pooling"]),
        "at": st.integers(0, 20),  # the plan before which it comes, and before which it is aborted
        "aborted_at": st.none() | st.integers(0, 30),
    }
)


async def served(
    requests: list[dict[str, Any]], executor: RememberingExecutor, depth: int
) -> dict[tuple[int, int], tuple[list[int], FinishCode]]:
    """What each sample of each request gets."""
    engine = Engine(executor, depth=depth)
    for step in range(1000):
        for number, request in enumerate(requests):
            if request["at"] == step:
                submit(engine, number, request)
            if request["aborted_at"] == step:
                engine.receive(Abort(EPOCH, number))
        if not await engine.core.step() and step > 30:
            break
    assert engine.messages(Rejected) == []
    stats = engine.core.stats()
    assert (stats["num_requests"], stats["num_used_blocks"], stats["num_suspects"]) == (0, 0, 0)
    assert stats["num_recoveries"] == executor.num_restarts
    return engine.outputs_by_sample()


def submit(engine: Engine, number: int, request: dict[str, Any]) -> None:
    fields = {"n": request["n"], "seed": request["seed"], "max_tokens": request["max_tokens"]}
    if request["kind"] == "pooling":
        fields |= {"n": 1, "max_tokens": 0, "sampling": POOLING["last"]}
    elif request["kind"] == "stateful":
        fields["sampling"] = Sampling(presence_penalty=1.0)
    engine.submit(number, request["prompt"], **fields)


@settings(max_examples=80)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=6),
    deaths=st.sets(st.integers(0, 25), min_size=1, max_size=2),  # A third might fail a request.
    depth=st.integers(1, 3),
    num_blocks=st.integers(16, 48),
)
def test_whenever_workers_die_every_stream_is_that_of_its_uncrashed_twin(
    requests: list[dict[str, Any]], deaths: set[int], depth: int, num_blocks: int
) -> None:
    twin = asyncio.run(served(requests, RememberingExecutor(64), 1))
    crashed = asyncio.run(served(requests, RememberingExecutor(num_blocks, deaths), depth))
    for name, (tokens, finish) in crashed.items():
        expected, end = twin[name]
        if FinishCode.ABORT in (finish, end):  # Which of the two was faster?
            shorter = min(len(tokens), len(expected))
            assert tokens[:shorter] == expected[:shorter]
        else:
            assert (tokens, finish) == (expected, end)
    assert crashed.keys() == twin.keys()
