"""Who is to blame when workers die, and what becomes of the others."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm.core.clients import CLIENT_SILENCE
from pyllm.errors import Cause, GivenUpError, blame
from pyllm.supervision.restarts import WINDOW
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import CLEARING_TOKENS, Abort, FinishCode, Isolated, Rejected
from tests.core.raw_engine import EPOCH, Engine
from tests.core.remembering_executor import NUM_ANSWERS, RememberingExecutor

POISON = 999  # no answer has it
PROMPTS = {1: [1, 2], 2: [11, 12, 13], 3: [21, POISON], 4: [31] * 9}

CAUSES: list[Cause] = ["killed", "crashed", "silent", "stalled", "out_of_memory"]
Outputs = dict[int, tuple[list[int], FinishCode]]


class PoisonedExecutor(RememberingExecutor):
    """Dies whenever the token is in what a row has read."""

    def __init__(self, *causes: Cause) -> None:
        super().__init__(dies_of=self.judge)
        self.causes = list(causes)  # of each death; the last one stays

    def judge(self, contexts: list[list[int]]) -> Cause | None:
        if not any(POISON in context for context in contexts):
            return None
        return self.causes[0]

    def kill(self, cause: Cause) -> None:
        super().kill(cause)
        if len(self.causes) > 1:
            del self.causes[0]


async def served(
    executor: RememberingExecutor, prompts: dict[int, list[int]], max_tokens: int = 6, **options: Any
) -> tuple[Engine, Outputs]:
    engine = Engine(executor, **options)
    for request, prompt in prompts.items():
        engine.submit(request, prompt, max_tokens=max_tokens, seed=request)
    await engine.run_dry()
    assert engine.core.stats()["num_suspects"] == engine.core.stats()["num_used_blocks"] == 0
    return engine, engine.outputs()


async def test_nobody_is_accused_of_the_end_of_what_workers_are_forked_from() -> None:
    executor = RememberingExecutor()
    executor._dies_of = lambda contexts: "orphaned" if len(executor.contexts) in (1, 2, 3, 5) else None
    _, outputs = await served(executor, PROMPTS)
    assert {finish for _, finish in outputs.values()} == {FinishCode.LENGTH}
    assert executor.num_restarts == 4
    assert max(map(len, executor.contexts)) > 1, "they go on together"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("causes", "num_restarts", "times"),
    [
        (["crashed"], 2, "2 times, the last 1"),
        (["stalled"], 2, "2 times, the last 1"),
        (["out_of_memory"], 2, "2 times, the last 1"),
        (["killed"], 3, "3 times, the last 2"),
        (["silent"], 3, "3 times, the last 2"),
        (["killed", "crashed"], 2, "2 times, the last 1"),
        (["crashed", "killed", "crashed"], 3, "3 times, the last 2"),
        (["crashed", "out_of_memory"], 3, "3 times, the last 2"),  # smaller steps come first
    ],
)
async def test_a_request_that_kills_is_failed_alone(
    causes: list[Cause], num_restarts: int, times: str, depth: int
) -> None:
    _, twin = await served(RememberingExecutor(), PROMPTS)
    executor = PoisonedExecutor(*causes)
    engine, outputs = await served(executor, PROMPTS, depth=depth)
    (rejected,) = engine.messages(Rejected)
    assert (rejected.request, rejected.code) == (3, "error")
    assert rejected.message.startswith(f"this request ended the worker that computed it {times} alone: the worker ")
    assert rejected.message.endswith(f", in step {len(executor.contexts) - 1 - num_after(executor)}")
    assert outputs.pop(3) == ([], FinishCode.ABORT)
    assert outputs == {request: output for request, output in twin.items() if request != 3}
    assert executor.num_restarts == num_restarts
    assert engine.core.stats()["num_quarantine_failures"] == 1


async def test_requests_that_are_found_out_cost_nobodys_restarts() -> None:
    poisoned = {request: [POISON, request] for request in (11, 12, 13)}
    executor = PoisonedExecutor("killed")
    engine, outputs = await served(executor, {1: [1, 2]} | poisoned, max_restarts=1)
    assert {rejected.request for rejected in engine.messages(Rejected)} == poisoned.keys()
    assert executor.num_restarts == 1 + 2 * len(poisoned)
    assert outputs[1][1] == FinishCode.LENGTH


class PatientExecutor(RememberingExecutor):
    """Dies of a context that begins as no answer does when it has computed more than `patience` rows of it."""

    def __init__(self, patience: int) -> None:
        super().__init__(dies_of=self.judge)
        self.patience = patience
        self._num_rows: dict[int, int] = {}  # by the first token

    def judge(self, contexts: list[list[int]]) -> Cause | None:
        for context in contexts:
            first = context[0]
            if first >= NUM_ANSWERS:
                self._num_rows[first] = self._num_rows.get(first, 0) + 1
                if self._num_rows[first] > self.patience:
                    return "crashed"
        return None

    async def restart(self) -> None:
        self._num_rows.clear()
        await super().restart()


@pytest.mark.parametrize("patience", range(CLEARING_TOKENS))
async def test_a_request_that_kills_after_some_tokens_each_time_is_found(patience: int) -> None:
    executor = PatientExecutor(patience)
    engine, outputs = await served(executor, {1: [1, 2], 2: [POISON]}, max_tokens=40)
    assert [rejected.request for rejected in engine.messages(Rejected)] == [2]
    assert outputs[1][1] == FinishCode.LENGTH


@pytest.mark.parametrize("patience", range(CLEARING_TOKENS))
async def test_clients_that_keep_sending_what_kills_end_nothing_else(patience: int) -> None:
    executor = PatientExecutor(patience)
    engine = Engine(executor, max_restarts=10)
    engine.submit(1, [1, 2], max_tokens=100)
    killers = range(2, 60)
    for request in killers:
        engine.submit(request, [NUM_ANSWERS + request], max_tokens=100)
        for _ in range(7):
            await engine.core.step()
        if engine.outputs()[1][1] != FinishCode.NONE:
            break
    await engine.run_dry()
    failed = [rejected.request for rejected in engine.messages(Rejected)]
    assert sorted(failed) == list(range(2, request + 1))
    assert len(failed) > 10
    assert engine.outputs()[1][1] == FinishCode.LENGTH


async def test_workers_that_are_ended_by_all_that_comes_are_given_up() -> None:
    executor = RememberingExecutor(dies_of=lambda contexts: "crashed")
    engine = Engine(executor, max_restarts=4)

    async def ask_again_and_again() -> None:
        for request in range(100):  # Each is tried alone, which costs nothing otherwise.
            engine.submit(request, [1, 2])
            await engine.run_dry()

    with pytest.raises(GivenUpError, match="more than 4 times"):
        await ask_again_and_again()
    assert executor.num_restarts == 4 + 3
    assert len(engine.messages(Rejected)) == 4


def num_after(executor: RememberingExecutor) -> int:
    """Plans after the last one with poison."""
    plans = [any(POISON in context for context in contexts) for contexts in executor.contexts]
    return plans[::-1].index(True)


async def test_those_that_did_nothing_are_cleared_one_by_one_and_run_together_again() -> None:
    executor = RememberingExecutor(deaths=[2])
    engine, outputs = await served(executor, {1: [1, 2], 2: [11, 12], 3: [21, 22]}, depth=2)
    assert [len(contexts) for contexts in executor.contexts[:4]] == [3, 3, 3, 3]  # of which the third was fatal
    # Two steps were in flight, so each has to get past two by itself; those that are cleared go on beside the others.
    assert [contexts[0][0] for contexts in executor.contexts[4:]] == [1, 1, 1, 11, 1, 11, 11, 21, 11, 21, 21, 21]
    assert {len(contexts) for contexts in executor.contexts[4:]} == {1}
    assert {finish for _, finish in outputs.values()} == {FinishCode.LENGTH}
    assert (executor.num_restarts, engine.messages(Rejected)) == (1, [])


async def test_a_second_death_costs_the_streams_no_more_than_the_first() -> None:
    executor = RememberingExecutor(deaths=[2, 40])
    prompts = {request: [10 * request] for request in range(1, 9)}
    await served(executor, prompts, max_tokens=60)
    alone = [len(contexts) == 1 for contexts in executor.contexts]
    assert executor.num_restarts == 2
    assert max(sum(alone[3:40]), sum(alone[41:78])) < 3 * len(prompts)


async def test_what_came_while_workers_died_often_is_let_go_when_they_do_no_more() -> None:
    executor = RememberingExecutor()
    executor._dies_of = lambda contexts: "orphaned" if len(executor.contexts) <= 4 else None  # nobody's fault
    engine = Engine(executor, max_restarts=10)
    engine.submit(0, [1], max_tokens=1)
    for _ in range(4):
        await engine.core.step()
    for request in range(1, 9):
        engine.submit(request, [10 * request], max_tokens=2)
    assert engine.core.stats()["num_suspects"] == 8
    engine.now += WINDOW
    await engine.run_dry()
    assert [len(contexts) for contexts in executor.contexts[4:]] == [8, 8, 1]


async def test_what_comes_meanwhile_waits_for_nobody() -> None:
    executor = RememberingExecutor(deaths=[0])
    engine = Engine(executor)
    engine.submit(1, list(range(100)), max_tokens=1)
    await engine.core.step()
    engine.submit(2, [7], max_tokens=2)
    await engine.run_dry()
    assert [contexts[0][0] for contexts in executor.contexts[1:5]] == [0, 7, 0, 7]


async def test_a_second_crash_makes_suspects_of_those_in_it_and_clears_nobody() -> None:
    executor = RememberingExecutor(deaths=[0, 2])
    engine = Engine(executor)
    engine.submit(1, list(range(100)), max_tokens=1)
    await engine.core.step()
    engine.submit(2, [7], max_tokens=2)
    await engine.core.step()  # the first, alone
    await engine.core.step()  # the second, with which the worker dies
    assert engine.core.stats()["num_suspects"] == 2
    await engine.run_dry()
    assert {finish for _, finish in engine.outputs().values()} == {FinishCode.LENGTH}
    assert executor.num_restarts == 2


@pytest.mark.parametrize("how", ["abort", "deadline", "silence"])
async def test_a_suspect_that_ends_before_its_turn_is_skipped(how: str) -> None:
    executor = RememberingExecutor(deaths=[0])
    engine = Engine(executor)
    engine.submit(1, [1, 2], timeout=5.0)
    engine.submit(2, [11, 12])
    await engine.core.step()
    assert engine.core.stats()["num_suspects"] == 2
    if how == "abort":
        engine.receive(Abort(EPOCH, 1))
    elif how == "deadline":
        engine.now = 5.0
    else:
        for _ in range(int(CLIENT_SILENCE / HEARTBEAT_INTERVAL) + 1):
            engine.core.beat()
    await engine.run_dry()
    assert engine.core.stats()["num_suspects"] == 0
    assert engine.core.stats()["num_requests"] == 0
    assert (2 not in engine.outputs()) if how == "silence" else engine.outputs()[2][1] == FinishCode.LENGTH


async def test_steps_that_want_too_much_memory_become_smaller() -> None:
    executor = RememberingExecutor()

    def judge(contexts: list[list[int]]) -> Cause | None:
        return "out_of_memory" if sum(len(context) for context in contexts) > 40 else None

    executor._dies_of = judge
    engine, outputs = await served(executor, {1: list(range(60))}, max_num_batched_tokens=64)
    assert outputs[1] == ([], FinishCode.ABORT)  # Its context alone is too much, however small its steps.
    assert engine.core.stats()["num_degradations"] == 1
    assert engine.call("reconfigure", {}).value["max_num_batched_tokens"] == 32


async def test_smaller_steps_fail_nobody_where_they_are_small_enough() -> None:
    executor = RememberingExecutor()
    executor._dies_of = lambda contexts: "out_of_memory" if len(contexts) > 2 else None
    prompts = {request: list(range(100 * request, 100 * request + 16)) for request in range(4)}
    engine, outputs = await served(executor, prompts, max_num_batched_tokens=64, max_num_seqs=2)
    assert {finish for _, finish in outputs.values()} == {FinishCode.LENGTH}
    assert (engine.messages(Rejected), executor.num_restarts) == ([], 0)


async def test_what_cores_were_lost_with_runs_alone_and_its_client_knows() -> None:
    executor = RememberingExecutor()
    alone: list[bool] = []
    engine = Engine(executor, on_alone=alone.append)
    engine.submit(1, [1, 2], max_tokens=6)
    engine.submit(2, [11], max_tokens=6, num_losses=1)
    engine.submit(3, list(range(21, 51)), max_tokens=6, num_losses=2)  # two steps
    engine.submit(4, [61], max_tokens=6, num_losses=2)
    await engine.run_dry()
    assert [[context[0] for context in contexts] for contexts in executor.contexts[:6]] == [
        [21],
        [1, 11],
        [21],
        [1, 11, 21],
        [61],
        [1, 11, 21, 61],
    ]
    told = [(each.request, each.stage) for each in engine.messages(Isolated)]
    assert told == [(3, "alone"), (3, "aside"), (3, "alone"), (3, "over"), (4, "aside"), (4, "alone"), (4, "over")]
    assert alone == [True, False] * 3
    assert {finish for _, finish in engine.outputs().values()} == {FinishCode.LENGTH}


async def test_what_a_third_core_was_lost_with_runs_alone_for_longer() -> None:
    executor = RememberingExecutor()
    engine = Engine(executor)
    engine.submit(1, [1, 2], max_tokens=20)
    engine.submit(2, [11, 12], max_tokens=20, num_losses=3)
    await engine.run_dry()
    rows = [[context[0] for context in contexts] for contexts in executor.contexts]
    turns = 2 * CLEARING_TOKENS - 1
    assert rows[: turns + 1] == [*([[11], [1]] * CLEARING_TOKENS)[:turns], [1, 11]]
    assert [each.stage for each in engine.messages(Isolated)] == [
        *(["alone", "aside"] * CLEARING_TOKENS)[:turns],
        "over",
    ]


async def test_what_has_not_changed_is_not_told_again() -> None:
    alone: list[bool] = []
    engine = Engine(RememberingExecutor(), on_alone=alone.append)
    engine.submit(1, list(range(40)), max_tokens=6, num_losses=2)  # three steps
    await engine.run_dry()
    assert engine.messages(Isolated) == [Isolated(EPOCH, 1, "alone"), Isolated(EPOCH, 1, "over")]
    assert alone == [True, False]


@pytest.mark.parametrize("causes", [["crashed"], ["killed"]])
async def test_an_end_while_workers_come_back_is_no_requests_doing(causes: list[Cause]) -> None:
    alone: list[bool] = []
    executor = PoisonedExecutor(*causes)
    engine = Engine(executor, on_alone=alone.append)
    engine.submit(1, [1, POISON], num_losses=2)
    await engine.run_dry()
    assert len(engine.messages(Rejected)) == 1
    assert alone == [True, False] * executor.num_restarts


@pytest.mark.parametrize(
    ("cause", "times"),
    [("crashed", 2), ("stalled", 2), ("out_of_memory", 2), ("killed", 3)],
)
async def test_a_first_dead_worker_is_not_held_against_what_cores_were_lost_with(cause: Cause, times: int) -> None:
    lucky = RememberingExecutor()
    lucky._dies_of = lambda contexts: cause if len(lucky.contexts) == 1 else None
    for executor, messages in (
        (lucky, []),
        (PoisonedExecutor(cause), [f"{blame('worker', times, times)}: "]),
    ):
        engine = Engine(executor)
        engine.submit(1, [1, POISON], num_losses=2)
        await engine.run_dry()
        told = [rejected.message.partition("the worker " + cause)[0] for rejected in engine.messages(Rejected)]
        assert told == messages


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    poisoned=st.sets(st.integers(0, 5), max_size=2),
    places=st.lists(st.integers(0, 29), min_size=6, max_size=6),
    n=st.integers(1, 3),
    causes=st.lists(st.sampled_from(CAUSES), min_size=1, max_size=3),
    depth=st.integers(1, 3),
    num_blocks=st.integers(16, 48),
)
def test_only_those_that_kill_fail(
    lengths: list[int],
    poisoned: set[int],
    places: list[int],
    n: int,
    causes: list[Cause],
    depth: int,
    num_blocks: int,
) -> None:
    prompts = {request: [100 * request + index for index in range(length)] for request, length in enumerate(lengths)}
    poisoned &= prompts.keys()
    for request in poisoned:
        prompts[request][places[request] % len(prompts[request])] = POISON

    async def run(executor: RememberingExecutor, depth: int) -> Engine:
        engine = Engine(executor, depth=depth, max_num_batched_tokens=32)
        for request, prompt in prompts.items():
            engine.submit(request, prompt, max_tokens=5, seed=request, n=n)
        await engine.run_dry()
        return engine

    twin = asyncio.run(run(RememberingExecutor(), 1)).outputs_by_sample()
    executor = PoisonedExecutor(*causes)
    executor.num_blocks = num_blocks
    engine = asyncio.run(run(executor, depth))
    assert {rejected.request for rejected in engine.messages(Rejected)} == poisoned
    assert {rejected.code for rejected in engine.messages(Rejected)} <= {"error"}
    outputs = engine.outputs_by_sample()
    assert {name: of for name, of in outputs.items() if name[0] not in poisoned} == {
        name: of for name, of in twin.items() if name[0] not in poisoned
    }
    assert executor.num_restarts <= 1 + 3 * len(poisoned)
