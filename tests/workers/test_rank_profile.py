"""The profile of a rank on a CPU: what it says of the embedded model's steps, and how it ends."""

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyllm_kernels import OpTimes
from torch._C._autograd import DeviceType

from pyllm.errors import ProtocolError
from pyllm.wire.messages import Sampled, Step
from pyllm.wire.plan_layout import PLAN_SECTIONS
from pyllm.wire.profiles import RankProfile
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.rank_profile import StepProfiler
from pyllm.workers.torch_recorder import tracks_of
from pyllm.workers.trace_events import Span, Track
from tests.plans import Planner, Row
from tests.tiny_model import write_tiny_model
from tests.workers.engine import greedy, loaded_runner, run

PROMPT = list(range(10, 40))
SKEW = 5000  # microseconds


def check(profile: RankProfile, num_steps: int, num_tokens: int) -> dict[str, dict[str, Any]]:
    """The rows by kind and op; no more time is in ops than there was."""
    times = profile.times
    assert (times.rank, times.num_steps, times.num_tokens) == (0, num_steps, num_tokens)
    host = [op for op in times.ops if op.kind != "gpu"]
    assert sum(op.total_us for op in host) + times.other_us == pytest.approx(times.wall_us)
    assert sum(op.share for op in host) <= 1
    assert all(op.share == pytest.approx(op.total_us / times.wall_us) and op.calls > 0 for op in host)
    assert [op.total_us for op in times.ops] == sorted((op.total_us for op in times.ops), reverse=True)
    rows: dict[str, dict[str, Any]] = {"rust": {}, "torch": {}}
    for op in host:
        rows[op.kind][op.op] = op
    return rows


def ops_are_not_timed() -> None:
    """Whoever has begun to time this thread's ops has ended it."""
    times = OpTimes(1)
    times.begin()
    times.end()


def test_the_embedded_models_time_is_in_rust() -> None:
    runner = loaded_runner("", quantization="int8", dtype="bfloat16")
    expected = greedy(runner, Planner(), 0, PROMPT, 5)
    runner.call("start_profile", (4, 0, [0]))
    assert greedy(runner, Planner(), 1, PROMPT, 5) == expected
    ops_are_not_timed()  # The fourth step was the last.
    profile = runner.call("stop_profile", (True,))
    rust = check(profile, 4, len(PROMPT) + 3)["rust"]
    layers = 4 * 30
    assert {name: rust[name].calls for name in ("paged_attention", "activation + packed_linear", "packed_rows")} == {
        "paged_attention": layers,
        "activation + packed_linear": layers,
        "packed_rows": 4,
    }
    assert rust["norm + packed_linear"].calls == 2 * layers
    assert rust["sample"].calls == 4
    assert profile.times.untraced == 0
    events = msgspec.json.decode(gzip.decompress(profile.events), type=list[dict[str, Any]])
    assert sum(event.get("cat") == "rust" for event in events) == sum(op.calls for op in rust.values())
    steps = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "step"]
    assert len(steps) == 4
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in ("rust", "torch")]
    # Two clocks, Rust's and torch's, agree with a third about when the steps were.
    assert all(any(start - SKEW <= begun and end <= ended + SKEW for start, ended in steps) for begun, end in spans)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model: Path = tmp_path_factory.mktemp("model") / "tiny"
    return loaded_runner(write_tiny_model(model))


def test_a_table_alone_has_no_trace_and_fewer_steps_are_said(runner: ModelRunner) -> None:
    runner.call("start_profile", (9, 0, [0]))
    greedy(runner, Planner(), 0, PROMPT, 3)
    profile = runner.call("stop_profile", (False,))
    check(profile, 3, len(PROMPT) + 2)
    assert profile.events == b""
    ops_are_not_timed()


def test_without_steps_there_is_an_empty_profile(runner: ModelRunner) -> None:
    runner.call("start_profile", (9, 0, [0]))
    profile = runner.call("stop_profile", (True,))
    assert (profile.times.num_steps, profile.times.wall_us, profile.times.ops) == (0, 0, [])
    assert [event["ph"] for event in msgspec.json.decode(gzip.decompress(profile.events))] == ["M"] * 6
    assert runner.call("stop_profile", (True,)) is None


def test_a_rank_that_is_not_chosen_records_nothing(runner: ModelRunner) -> None:
    runner.call("start_profile", (9, 0, [1, 2]))
    greedy(runner, Planner(), 0, PROMPT, 2)
    ops_are_not_timed()
    assert runner.call("stop_profile", (True,)) is None


def test_a_profile_that_nobody_stopped_gives_way_to_the_next(runner: ModelRunner) -> None:
    runner.call("start_profile", (9, 0, [0]))
    greedy(runner, Planner(), 0, PROMPT, 2)
    runner.call("start_profile", (2, 0, [0]))
    greedy(runner, Planner(), 0, PROMPT, 5)
    check(runner.call("stop_profile", (False,)), 2, len(PROMPT) + 1)


def test_a_step_that_raises_ends_it(runner: ModelRunner) -> None:
    runner.call("start_profile", (9, 0, [0]))
    planner = Planner()
    planner.start(0)
    step, frame = planner.step(Row(0, PROMPT))
    run(runner, (step, frame))
    with pytest.raises(ProtocolError):
        runner.run(Step(1, step.counts), frame[:64])
    ops_are_not_timed()
    greedy(runner, Planner(), 0, PROMPT, 2)
    check(runner.call("stop_profile", (False,)), 1, len(PROMPT))


class Pending:
    """A step on a GPU, whose tokens are there at once when they are asked for."""

    def is_done(self) -> bool:
        return True

    def answer(self) -> Sampled:
        return Sampled(0, b"", b"")


def test_steps_that_overlap_share_their_time() -> None:
    times = iter([100, 130, 150, 190, 270])
    profiler = StepProfiler(2, HostDevice(), lambda: next(times) * 1000)
    counts = tuple(range(3, 3 + len(PLAN_SECTIONS)))
    steps = [profiler.run(Step(number, counts), Pending) for number in (4, 5)]
    assert not profiler.takes_steps
    for step in steps:
        step.answer()
    ops_are_not_timed()
    profile = profiler.finish(1, 0, with_trace=True)
    # The second begins at 130, and the time of the first ends at 150.
    assert (profile.times.num_steps, profile.times.num_tokens, profile.times.wall_us) == (2, 6, 90.0)
    events = msgspec.json.decode(gzip.decompress(profile.events))
    steps_of = [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert steps_of == [("step 4", 100.0, 50.0), ("step 5", 150.0, 40.0)]


class Event:
    """One of Kineto's."""

    def __init__(
        self, name: str, start: int, duration: int, device: int | None = None, *, is_note: bool = False
    ) -> None:
        self._name, self._start, self._duration, self._device, self._is_note = name, start, duration, device, is_note

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._start

    def duration_ns(self) -> int:
        return self._duration

    def is_user_annotation(self) -> bool:
        return self._is_note

    def is_hidden_event(self) -> bool:
        return False

    def device_type(self) -> DeviceType:
        return DeviceType.CPU if self._device is None else DeviceType.CUDA

    def start_thread_id(self) -> int:
        return 9

    def device_index(self) -> int:
        assert self._device is not None
        return self._device

    def device_resource_id(self) -> int:
        return 7


def test_events_within_the_steps_are_taken_by_where_they_ran() -> None:
    events = [
        Event("before", 9, 2),
        Event("aten::mm", 10, 5),
        Event("a module", 10, 9, is_note=True),
        Event("kernel", 12, 6, device=1),
        Event("after", 19, 2),
    ]
    assert tracks_of(events, 10, 20) == [
        Track("torch", "torch ops, thread 9", [Span("aten::mm", 10, 5)]),
        Track("gpu", "GPU 1, stream 7", [Span("kernel", 12, 6)]),
    ]
