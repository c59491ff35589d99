import asyncio
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from pyllm._rust import Scheduler, SchedulerError
from pyllm.config import EngineConfig
from pyllm.core.loop import EngineCore
from pyllm.errors import EngineDeadError
from pyllm.messages import (
    PROTOCOL_VERSION,
    Abort,
    Call,
    ClientMessage,
    CoreMessage,
    Deltas,
    FinishCode,
    Heartbeat,
    Hello,
    ModelInfo,
    Ready,
    Rejected,
    Reply,
    Sampling,
    Submit,
)
from tests.core.counting_executor import CountingExecutor

EPOCH = 7
MODEL = ModelInfo(
    name="counting",
    max_model_len=128,
    vocab_size=1000,
    eos_token_ids=(),
    dtype="float32",
    block_size=4,
    num_blocks=64,
    kv_cache_tokens=256,
    max_num_seqs=8,
    max_num_batched_tokens=16,
    tensor_parallel_size=1,
)


class Engine:
    """A core over the counting model, and one raw client that keeps what it is sent."""

    def __init__(self, executor: CountingExecutor | None = None, depth: int = 1) -> None:
        self.executor = executor or CountingExecutor()
        self.scheduler = Scheduler(
            block_size=4,
            num_blocks=self.executor.num_blocks,
            max_num_seqs=8,
            max_num_batched_tokens=16,
            max_model_len=128,
            vocab_size=1000,
            enable_prefix_caching=True,
        )
        self.now = 0.0
        self.sent: list[tuple[bytes, CoreMessage]] = []
        self.slow = False  # whether the client's queue is full
        ready = Ready(PROTOCOL_VERSION, EPOCH, MODEL, "fingerprint")
        self.core = EngineCore(
            self.scheduler,
            self.executor,
            self,
            ready,
            config=EngineConfig(),
            clock=lambda: self.now,
            depth=depth,
        )
        self.receive(Hello(PROTOCOL_VERSION))

    def send(self, message: CoreMessage, *frames: object, identity: bytes = b"") -> bool:
        """Take what the core sends."""
        if not self.slow:
            self.sent.append((identity, message))
        return not self.slow

    def close(self, linger: float = 0.0) -> None:
        """Nothing is open."""

    def receive(self, message: ClientMessage, identity: bytes = b"client") -> None:
        self.core.receive(identity, message)

    def submit(self, request: int, prompt: list[int], max_tokens: int = 4, **fields: Any) -> None:
        packed = array("i", prompt).tobytes()
        self.receive(Submit(fields.pop("epoch", EPOCH), request, packed, 0, max_tokens, Sampling(), **fields))

    def outputs(self, identity: bytes = b"client") -> dict[int, tuple[list[int], FinishCode]]:
        """Tokens and finish of each request, put together from the deltas sent so far."""
        result: dict[int, tuple[list[int], FinishCode]] = {}
        for receiver, message in self.sent:
            if receiver != identity or not isinstance(message, Deltas):
                continue
            starts, tokens = array("i", message.token_starts), array("i", message.tokens)
            for row, request in enumerate(array("Q", message.requests)):
                before, _ = result.get(request, ([], FinishCode.NONE))
                assert array("i", message.offsets)[row] == len(before)
                new = list(tokens[starts[row] : starts[row + 1]])
                result[request] = (before + new, FinishCode(message.finishes[row]))
        return result

    def messages(self, kind: type[Any]) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    async def run_dry(self) -> None:
        while await self.core.step():
            pass


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
    engine.now = 11.0
    engine.core.beat()
    assert engine.core.stats()["num_requests"] == 0
    assert engine.core.stats()["num_clients"] == 0


async def test_dead_worker_ends_every_stream_with_the_reason() -> None:
    engine = Engine(CountingExecutor(dies_at=2))
    engine.submit(1, [1, 2], max_tokens=50)
    with pytest.raises(EngineDeadError):
        await engine.core.run()
    assert engine.messages(Rejected) == [Rejected(None, "engine_dead", "worker 0 of core 0 was killed by SIGKILL")]
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await engine.core.step()


async def test_unforeseen_error_ends_every_stream_with_a_word() -> None:
    engine = Engine(CountingExecutor(lies_at=2))
    engine.submit(1, [1, 2], max_tokens=50)
    with pytest.raises(SchedulerError):
        await engine.core.run()
    (rejected,) = engine.messages(Rejected)
    assert rejected.code == "engine_dead"
    assert "does not fit" in rejected.message


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


async def test_idle_core_wakes_for_a_request() -> None:
    engine = Engine()
    running = asyncio.ensure_future(engine.core.run())
    await asyncio.sleep(0)
    engine.submit(1, [1, 2])
    await until(lambda: 1 in engine.outputs() and engine.outputs()[1][1] == FinishCode.LENGTH)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop go on until something holds; the test's own timeout bounds it."""
    while not holds():
        await asyncio.sleep(0)
