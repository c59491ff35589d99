import asyncio
from array import array
from typing import Any

import msgspec
import pytest

from pyllm._rust import Plan, Scheduler, SchedulerError
from pyllm.core.clients import CLIENT_SILENCE
from pyllm.core.policy_plugins import PolicyRequest
from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.messages import (
    Abort,
    Call,
    Deltas,
    FinishCode,
    Heartbeat,
    Hello,
    Logprobs,
    Output,
    Rejected,
    Reply,
    Sampled,
    Sampling,
    Submit,
)
from tests.core.counting_executor import CountingExecutor
from tests.core.raw_engine import EPOCH, Engine
from tests.waiting import until


def counted(prompt: list[int], number: int) -> list[int]:
    return [prompt[-1] + 1 + index for index in range(number)]


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_requests_get_their_own_tokens_at_any_depth(depth: int) -> None:
    engine = Engine(depth=depth)
    prompts = {request: list(range(request * 10, request * 10 + 5 + 7 * request)) for request in range(6)}
    for request, prompt in prompts.items():
        engine.submit(request, prompt, max_tokens=3 + request)
    await engine.run_dry()
    assert engine.outputs() == {
        request: (counted(prompt, 3 + request), FinishCode.LENGTH) for request, prompt in prompts.items()
    }
    assert engine.core.stats()["num_used_blocks"] == 0


async def test_a_step_mixes_decodes_with_a_partial_prefill() -> None:
    engine = Engine()
    engine.submit(1, [1, 2, 3], max_tokens=20)
    await engine.core.step()
    engine.submit(2, list(range(40)), max_tokens=2)
    await engine.core.step()
    mixed = engine.executor.plans[-1]
    lengths = list(mixed["query_starts"][1:] - mixed["query_starts"][:-1])
    assert lengths == [1, 15]  # one decode, and what the budget of 16 leaves to a prompt of 40
    assert list(mixed["sampled_starts"]) == [0, 1, 1]  # the unfinished prompt samples nothing


async def test_second_request_with_the_same_prefix_computes_less() -> None:
    engine = Engine()
    prompt = list(range(12))
    engine.submit(1, prompt)
    await engine.run_dry()
    computed = engine.core.stats()["num_computed_tokens"]
    engine.submit(2, prompt)
    await engine.run_dry()
    assert engine.core.stats()["num_computed_tokens"] - computed == computed - 8
    assert array("i", engine.messages(Deltas)[-1].cached_tokens)[0] == 8


async def test_too_few_blocks_preempt_and_change_nothing() -> None:
    engine = Engine(CountingExecutor(num_blocks=12))
    prompts = {request: list(range(request * 20, request * 20 + 10)) for request in range(4)}
    for request, prompt in prompts.items():
        engine.submit(request, prompt, max_tokens=30)
    await engine.run_dry()
    assert engine.core.stats()["num_preemptions"] > 0
    assert engine.outputs() == {
        request: (counted(prompt, 30), FinishCode.LENGTH) for request, prompt in prompts.items()
    }


async def test_abort_frees_blocks_before_the_next_step_and_is_answered() -> None:
    engine = Engine()
    engine.submit(1, list(range(8)), max_tokens=50)
    await engine.core.step()
    assert engine.core.stats()["num_used_blocks"] > 0
    engine.receive(Abort(EPOCH, 1))
    assert engine.core.stats()["num_used_blocks"] == 0
    assert engine.outputs()[1][1] == FinishCode.ABORT
    assert not await engine.core.step()


async def test_another_epoch_is_dropped() -> None:
    engine = Engine()
    engine.submit(1, [1], epoch=EPOCH + 1)
    engine.submit(2, [1, 2], max_tokens=50)
    engine.receive(Abort(EPOCH + 1, 2))
    engine.receive(Call(EPOCH + 1, 9, "stats"))
    assert engine.core.stats()["num_requests"] == 1
    assert engine.messages(Reply) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"adapter": "a"}, "adapter"),
        ({"priority": 2**31}, "priority"),
        ({"timeout": float("inf")}, "deadline"),
        ({"min_tokens": 5}, "min_tokens 5 is above max_tokens 4"),
        ({"ttft_target": 0.0}, "ttft_target"),
        ({"tpot_target": -1.0}, "tpot_target"),
        ({"age": -1.0}, "age"),
        ({"age": 1e308}, "age"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"prompt": []}, "prompt"),
        ({"prompt": list(range(128))}, "128"),
        ({"prompt": [-5]}, "-5"),
        ({"prompt": [1000]}, "1000"),
        ({"n": 9}, "9"),
    ],
)
async def test_bad_submit_is_rejected_alone(change: dict[str, Any], text: str) -> None:
    engine = Engine()
    engine.submit(1, **{"prompt": [1], **change})
    (rejected,) = engine.messages(Rejected)
    assert rejected.request == 1
    assert text in rejected.message
    engine.submit(2, [5])
    await engine.run_dry()
    assert engine.outputs()[2][0] == [6, 7, 8, 9]


@pytest.mark.parametrize("sampling", [Sampling(temperature=float("nan")), Sampling(top_p=0.0), Sampling(min_p=2.0)])
async def test_sampling_out_of_range_is_rejected_before_a_worker_sees_it(sampling: Sampling) -> None:
    engine = Engine()
    engine.receive(Submit(EPOCH, 1, array("i", [1]).tobytes(), 0, 4, sampling))
    assert engine.messages(Rejected)[0].request == 1


class FallibleExecutor(CountingExecutor):
    """Cannot do the rows of a slot from a step on; it is its own fault where `at_fault`."""

    def __init__(self, slot: int, from_step: int, at_fault: bool = False) -> None:
        super().__init__()
        self._slot = slot
        self._from_step = from_step
        self._at_fault = at_fault

    def sample(self, plan: Plan) -> Sampled:
        sampled = super().sample(plan)
        starts, tokens = array("i", sampled.starts), array("i", sampled.tokens)
        for row, slot in enumerate(self.plans[-1]["slots"]):
            if slot == self._slot and plan.step >= self._from_step:
                tokens[starts[row] : starts[row + 1]] = array("i", [-1] * (starts[row + 1] - starts[row]))
                sampled.failures[row] = "the grammar takes too long"
        faults = tuple(sampled.failures) if self._at_fault else ()
        parameters = {} if self._at_fault else dict.fromkeys(sampled.failures, "structured_outputs")
        return Sampled(
            plan.step,
            sampled.starts,
            tokens.tobytes(),
            failures=sampled.failures,
            faults=faults,
            parameters=parameters,
        )


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("at_fault", "code"), [(False, "failed"), (True, "error")])
async def test_a_row_that_fails_ends_its_request_alone(depth: int, n: int, at_fault: bool, code: str) -> None:
    engine = Engine(FallibleExecutor(slot=0, from_step=0 if n > 1 else 1, at_fault=at_fault), depth=depth)
    engine.submit(1, [1, 2], max_tokens=5, n=n)
    engine.submit(2, [5], max_tokens=5)
    await engine.run_dry()
    parameter = None if at_fault else "structured_outputs"
    assert engine.messages(Rejected) == [Rejected(1, code, "the grammar takes too long", parameter)]
    outputs = engine.outputs()
    assert outputs[2] == ([6, 7, 8, 9, 10], FinishCode.LENGTH)
    assert outputs[1] == ([3][: 2 - n], FinishCode.ABORT)
    assert engine.core.stats()["num_used_blocks"] == 0


class MoodyExecutor(CountingExecutor):
    """Is not ready in one step of five, and goes two tokens ahead in another."""

    def sample(self, plan: Plan) -> Sampled:
        sampled = super().sample(plan)
        starts, tokens = array("i", [0]), array("i")
        for row, slot in enumerate(self.plans[-1]["slots"].tolist()):
            begin, end = array("i", sampled.starts)[row : row + 2]
            answer = array("i", sampled.tokens)[begin:end]
            if answer and plan.step % 5 == 1:
                answer, self._last_token[slot] = array("i"), 0
            elif answer and plan.step % 5 == 3:
                answer.extend([answer[0] + 1, answer[0] + 2])
            tokens.extend(answer)
            starts.append(len(tokens))
        return Sampled(plan.step, starts.tobytes(), tokens.tobytes())


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_rows_that_are_not_ready_or_go_ahead_change_no_answer(depth: int) -> None:
    executor = MoodyExecutor(num_blocks=16)
    engine = Engine(executor, depth=depth)
    for request in range(5):
        engine.submit(request, [request * 100, 7 + request * 100], max_tokens=20, sampling=Sampling(grammar="a"))
    await engine.run_dry()
    expected = {request: (counted([7 + request * 100], 20), FinishCode.LENGTH) for request in range(5)}
    assert engine.outputs() == expected
    histories = [plan["histories"].tolist() for plan in executor.plans if len(plan["slot_inits"])]
    assert histories[0][:4] == [0, 7, 100, 107]


async def test_log_probabilities_go_out_with_their_tokens() -> None:
    executor = CountingExecutor()
    engine = Engine(executor)
    plain = executor.sample
    values = array("f", [-0.5, -0.25]).tobytes()

    def sample(plan: Plan) -> Sampled:
        empty = array("i", [0, 0]).tobytes()
        told = Logprobs(empty, b"", pack(0, 2), pack(7, 9), values, pack(2, 1))
        return msgspec.structs.replace(plain(plan), logprobs=told)

    executor.sample = sample  # type: ignore[method-assign]
    engine.submit(1, [1, 2], max_tokens=1, sampling=Sampling(logprobs=1))
    await engine.run_dry()
    (deltas,) = engine.messages(Deltas)
    columns = (deltas.logprob_starts, deltas.logprob_ids, deltas.logprob_values, deltas.ranks)
    assert columns == (pack(0, 2), pack(7, 9), values, pack(2, 1))


def pack(*numbers: int) -> bytes:
    return array("i", numbers).tobytes()


async def test_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = Engine(CountingExecutor(num_blocks=8))
    engine.submit(1, list(range(30)), max_tokens=20)
    (rejected,) = engine.messages(Rejected)
    assert rejected.code == "too_large"
    assert "8" in rejected.message


async def test_stranger_is_told_to_say_hello_and_wrong_version_is_named() -> None:
    engine = Engine()
    engine.receive(Heartbeat(), b"stranger")
    assert engine.sent[-1] == (b"stranger", Rejected(None, "hello", "say Hello first: this core does not know you"))
    engine.receive(Hello(99), b"future")
    assert "99" in engine.messages(Rejected)[-1].message


async def test_malformed_frame_is_counted_and_answered() -> None:
    engine = Engine()
    engine.core.malformed(b"noise", "not msgpack")
    assert engine.core.stats()["malformed_frames"] == 1
    assert engine.sent[-1][0] == b"noise"


async def test_call_is_answered_and_unknown_methods_are_errors() -> None:
    engine = Engine()
    engine.receive(Call(EPOCH, 1, "stats"))
    engine.receive(Call(EPOCH, 2, "shutdown"))
    engine.receive(Call(EPOCH, 3, "stats", ("too", "many")))
    first, second, third = engine.messages(Reply)
    assert first.ok
    assert first.value["num_running"] == 0
    assert not second.ok
    assert "stats" in second.value
    assert not third.ok


async def test_silent_client_loses_its_requests() -> None:
    engine = Engine()
    engine.submit(1, [1, 2], max_tokens=50)
    engine.now = 60.0  # All of the machine stood still: what the client has sent is yet to be read.
    engine.core.beat()
    assert engine.core.stats()["num_requests"] == 1
    for _ in range(int(CLIENT_SILENCE / HEARTBEAT_INTERVAL)):
        engine.core.beat()
    assert engine.core.stats()["num_requests"] == 0
    assert engine.core.stats()["num_clients"] == 0


async def test_an_unforeseen_error_ends_the_core_and_no_stream() -> None:
    engine = Engine(CountingExecutor(lies_at=2))
    engine.submit(1, [1, 2], max_tokens=50)
    with pytest.raises(SchedulerError, match="does not fit"):
        await engine.core.run()
    assert engine.messages(Rejected) == []
    assert engine.outputs() == {1: ([3, 4], FinishCode.NONE)}


async def test_slow_client_gets_its_last_tokens_from_an_idle_core() -> None:
    engine = Engine()
    engine.submit(1, [1, 2], max_tokens=3)
    engine.slow = True
    await engine.run_dry()
    engine.slow = False
    engine.core.beat()
    assert engine.outputs()[1] == ([3, 4, 5], FinishCode.LENGTH)


async def test_drain_waits_for_what_a_slow_client_is_owed() -> None:
    engine = Engine()
    engine.submit(1, [1, 2], max_tokens=3)
    engine.slow = True
    engine.core.drain()
    running = asyncio.ensure_future(engine.core.run())
    await until(lambda: engine.core.last_step == 2)
    assert not running.done()
    engine.slow = False
    engine.core.beat()
    await running
    assert engine.outputs()[1] == ([3, 4, 5], FinishCode.LENGTH)


async def test_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    engine = Engine()
    engine.submit(1, [1, 2], max_tokens=5)
    running = asyncio.ensure_future(engine.core.run())
    await until(lambda: len(engine.outputs()) > 0)
    engine.core.drain()
    engine.submit(2, [1, 2])
    await running
    assert engine.outputs()[1] == ([3, 4, 5, 6, 7], FinishCode.LENGTH)
    assert engine.messages(Rejected)[0].code == "draining"


async def test_a_drain_finishes_also_what_comes_with_tokens() -> None:
    engine = Engine()
    engine.core.drain()
    engine.submit(1, [1, 2], max_tokens=4, outputs=(Output(array("i", [3, 4]).tobytes(), False),))
    await engine.core.run()
    told = engine.messages(Deltas)
    assert [token for deltas in told for token in array("i", deltas.tokens)] == [5, 6]
    assert told[-1].finishes == bytes([FinishCode.LENGTH])


async def test_idle_core_wakes_for_a_request() -> None:
    engine = Engine()
    running = asyncio.ensure_future(engine.core.run())
    await asyncio.sleep(0)
    engine.submit(1, [1, 2])
    await until(lambda: 1 in engine.outputs() and engine.outputs()[1][1] == FinishCode.LENGTH)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_deadlines_end_what_runs_and_what_waits() -> None:
    engine = Engine(max_num_seqs=1)
    engine.submit(1, [1, 2], max_tokens=50, timeout=2.0)
    engine.submit(2, [5], max_tokens=50, timeout=1.0)
    engine.submit(3, [8], max_tokens=2)
    await engine.core.step()
    engine.now = 1.0
    await engine.core.step()
    engine.now = 2.0
    await engine.run_dry()
    assert engine.outputs() == {
        1: ([3, 4], FinishCode.DEADLINE),
        2: ([], FinishCode.DEADLINE),
        3: ([9, 10], FinishCode.LENGTH),
    }


async def test_a_beat_ends_what_is_held_beyond_its_deadline() -> None:
    engine = Engine()
    engine.submit(1, [1, 2], timeout=3.0)
    engine.scheduler.hold(0, 1, "compiling a grammar")
    running = asyncio.ensure_future(engine.core.run())
    await asyncio.sleep(0)
    engine.core.drain()
    engine.now = 3.0
    engine.core.beat()
    await running
    assert engine.outputs() == {1: ([], FinishCode.DEADLINE)}


async def test_heartbeats_make_no_steps() -> None:
    engine = Engine()
    running = asyncio.ensure_future(engine.core.run())
    await asyncio.sleep(0)
    before = engine.scheduler.decisions(9)
    for _ in range(3):
        engine.receive(Heartbeat())
        engine.core.beat()
        await asyncio.sleep(0)
    assert engine.scheduler.decisions(9) == before
    running.cancel()


async def test_a_stop_token_before_min_tokens_ends_nothing() -> None:
    engine = Engine()
    stops = array("i", [6, 8]).tobytes()
    engine.submit(1, [5], max_tokens=9, stop_token_ids=stops, min_tokens=2)
    await engine.run_dry()
    assert engine.outputs() == {1: ([6, 7, 8], FinishCode.STOP)}


async def test_the_lowest_priority_is_served_first_under_the_policy_of_that_name() -> None:
    engine = Engine(scheduling_policy="priority", max_num_seqs=1)
    for request, priority in ((1, 5), (2, -3), (3, 0)):
        engine.submit(request, [request], max_tokens=1, priority=priority)
    await engine.run_dry()
    assert [int(plan["tokens"][0]) for plan in engine.executor.plans] == [2, 3, 1]


async def test_a_policy_of_another_package_gives_each_request_its_key_once() -> None:
    asked: list[PolicyRequest] = []

    def longest_first(request: PolicyRequest) -> float:
        asked.append(request)
        return -request.num_prompt_tokens

    engine = Engine(policy=longest_first, max_num_seqs=1)
    engine.call("reconfigure", {"scheduling_policy": "fcfs"})  # The name is as it was: the policy stays.
    engine.scheduler.reconfigure(policy="custom")
    engine.now = 10.0
    engine.submit(1, [1], max_tokens=1, tenant="acme", age=4.0)
    engine.submit(2, [2, 2, 2], max_tokens=1, outputs=(Output(b"", False),))
    await engine.run_dry()
    assert [int(plan["tokens"][0]) for plan in engine.executor.plans] == [2, 1]
    assert [(request.arrival, request.age, request.tenant) for request in asked] == [
        (6.0, 4.0, "acme"),
        (10.0, 0.0, ""),
    ]


@pytest.mark.parametrize("key", [float("nan"), float("inf"), 10**400, "soon", None, 1j])
async def test_a_key_that_is_no_finite_number_refuses_that_request_alone(key: Any) -> None:
    engine = Engine(policy=lambda request: key if request.tenant == "odd" else 0.0)
    engine.submit(1, [1], tenant="odd")
    engine.submit(2, [5])
    await engine.run_dry()
    (rejected,) = engine.messages(Rejected)
    assert (rejected.request, rejected.code) == (1, "invalid")
    assert "finite" in rejected.message
    assert engine.outputs() == {2: ([6, 7, 8, 9], FinishCode.LENGTH)}


async def test_a_policy_that_fails_refuses_that_request_alone() -> None:
    engine = Engine(policy=lambda request: 1 / request.priority)
    engine.submit(1, [1])
    engine.submit(2, [5], priority=1)
    await engine.run_dry()
    (rejected,) = engine.messages(Rejected)
    assert (rejected.request, rejected.code) == (1, "invalid")
    assert "ZeroDivisionError: division by zero" in rejected.message
    assert engine.outputs() == {2: ([6, 7, 8, 9], FinishCode.LENGTH)}


class TimedExecutor(CountingExecutor):
    """Answers step i when the clock is at `answers[i]`."""

    def __init__(self, answers: list[float]) -> None:
        super().__init__()
        self.answers = answers
        self.engine: Engine

    def submit(self, plan: Plan, transfers: bytes = b"") -> Any:
        async def answer() -> Sampled:
            self.engine.now = self.answers[plan.step]
            return sampled

        sampled = self.sample(plan)
        return answer()


class Commits:
    """A scheduler that notes the seconds of its commits."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def commit(self, step: int, starts: bytes, tokens: bytes, seconds: float, *columns: Any) -> list[int]:
        self.seconds.append(seconds)
        return self._scheduler.commit(step, starts, tokens, seconds, *columns)


@pytest.mark.parametrize(
    ("depth", "seconds"),
    [
        (1, [1.0, 0.5, 2.0]),
        (2, [1.0, 0.5, 2.0]),  # from the commit before: until then the workers had another step
    ],
)
async def test_a_step_takes_from_its_submission_or_the_commit_before_to_its_answer(
    depth: int, seconds: list[float]
) -> None:
    executor = TimedExecutor([1.0, 1.5, 3.5])
    spies: list[Commits] = []

    def spy(scheduler: Scheduler) -> Commits:
        spies.append(Commits(scheduler))
        return spies[-1]

    executor.engine = engine = Engine(executor, depth=depth, spy=spy)
    engine.submit(1, [1, 2], max_tokens=3)
    await engine.run_dry()
    assert spies[0].seconds == seconds


async def test_time_without_a_step_counts_for_none() -> None:
    executor = TimedExecutor([1.0, 10.5])
    spies: list[Commits] = []

    def spy(scheduler: Scheduler) -> Commits:
        spies.append(Commits(scheduler))
        return spies[-1]

    executor.engine = engine = Engine(executor, spy=spy)
    for request, now in ((1, 0.0), (2, 10.0)):
        engine.now = now
        engine.submit(request, [1, 2], max_tokens=1)
        await engine.run_dry()
    assert spies[0].seconds == [1.0, 0.5]
