"""Steps that are recorded once and replayed: what is staged for them, and the same tokens and cache as without."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from pyllm_kernels import AttentionLayer, AttentionMetadata, AttentionShape, select
from pyllm_kernels.ops.paged_attention import paged_attention
from torch import Tensor

from pyllm.wire.messages import Step
from pyllm.workers.attention_backends import AttentionBackend
from pyllm.workers.cuda_graphs import (
    MAX_CAPTURE_SECONDS,
    Bucket,
    CaptureBudget,
    CapturedSteps,
    CudaCapture,
    Metadata,
    StepInputs,
    decode_buckets,
    mixed_buckets,
)
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.kv.kv_cache import CachedLayer
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.step.attention_batch import AttentionBatch, AttentionGroup
from pyllm.workers.step.batch import Batch, PlanBuffer
from tests.plans import Planner, Row
from tests.workers.engine import loaded_runner, offer_backend, run, worker_config

CPU = TorchDevice(torch.device("cpu"))


class Recorder:
    """Stands where CUDA records: what is replayed is computed anew, into the same memory."""

    def __init__(self) -> None:
        self.replays: list[int] = []  # sizes of passes, whose output has a line a token
        self.draws: list[int] = []  # and of samplings
        self.captures = 0

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        output = compute()
        self.captures += 1

        def replay() -> None:
            (self.replays if output.dim() == 2 else self.draws).append(len(output))
            output.copy_(compute())

        return output, replay

    def free_bytes(self) -> int:
        return 1 << 40


class Hook:
    """Counts layers, and keeps the cache of each."""

    def __init__(self) -> None:
        self.calls = 0
        self.cached: dict[int, CachedLayer] = {}

    def before_attention(self, layer: int) -> None:
        self.calls += 1

    def after_attention(self, layer: int, output: Tensor, cached: CachedLayer, metadata: AttentionMetadata) -> Tensor:
        self.cached[layer] = cached
        return output


@pytest.mark.parametrize(
    ("max_num_seqs", "first", "last", "number"),
    [
        (1, [1], [1], 1),
        (3, [1, 2, 3], [3], 3),
        (20, [1, 2, 4, 8, 16, 20], [20], 6),
        (300, [1, 2, 4, 8], [288, 300], 38),
    ],
)
def test_decode_sizes_are_dense_where_batches_are_small(
    max_num_seqs: int, first: list[int], last: list[int], number: int
) -> None:
    buckets = decode_buckets(max_num_seqs)
    assert all(bucket.max_query_length == 1 and bucket.tokens == bucket.rows for bucket in buckets)
    sizes = [bucket.rows for bucket in buckets]
    assert sizes[: len(first)] == first
    assert sizes[-len(last) :] == last
    assert len(sizes) == number
    assert decode_buckets(10_000)[-1].rows == 512


def test_mixed_sizes_are_few() -> None:
    assert mixed_buckets(8192, 256) == [
        *(Bucket(size, size, size) for size in (16, 32, 64)),
        *(Bucket(128, 128, rows) for rows in (64, 128)),
        *(Bucket(192, 192, rows) for rows in (64, 192)),
        *(Bucket(size, size, rows) for size in (256, 320, 384, 448, 512) for rows in (64, 256)),
    ]
    assert mixed_buckets(40, 3) == [Bucket(size, size, 3) for size in (16, 32, 40)]
    assert mixed_buckets(1, 1) == []


class Pass:
    """Captured steps over a pass that gives ten times the positions; keeps what it was asked for."""

    def __init__(self, *buckets: Bucket) -> None:
        self.inputs: list[StepInputs[Tensor]] = []
        self.prepared: list[tuple[AttentionBatch, bool]] = []
        self.recorder = Recorder()
        self.steps = CapturedSteps(self._prepare, self._forward, buckets, CPU, max_sequence_length=9)
        for bucket in buckets:
            self.steps.capture(bucket, self.recorder)

    def _prepare(self, rows: AttentionBatch, captured: Metadata | None) -> Metadata:
        self.prepared.append((rows, captured is not None))
        return (rows.metadata(AttentionGroup(AttentionShape(1, 1, 16, "float32"), rows.slots)),)

    def _forward(self, inputs: StepInputs[Tensor], attention: Metadata) -> Tensor:
        assert attention[0].slots is inputs.slots
        self.inputs.append(inputs)
        return inputs.positions.unsqueeze(-1) * 10


def load(step: Step, frame: bytes) -> Batch:
    return PlanBuffer(CPU).load(step.counts, frame)


def test_a_decode_takes_the_next_larger_pass_and_pads_it() -> None:
    captured = Pass(Bucket(1, 8, 8), Bucket(1, 4, 4), Bucket(1, 2, 2))
    planner = Planner()
    for slot in range(3):
        planner.start(slot)
    planner.step(*(Row(slot, [1] * (slot + 5)) for slot in range(3)))
    batch = load(*planner.step(Row(2, [-1]), Row(0, [9]), Row(1, [-1])))

    bucket = captured.steps.bucket_of(batch)
    assert bucket == Bucket(1, 4, 4)
    output = captured.steps.run(bucket, batch)

    assert captured.recorder.replays == [4]
    assert output.tolist() == [[70], [50], [60]]
    assert [len(rows.host_sequence_lengths) for rows, _ in captured.prepared] == [8, 4, 2, 3]
    rows, is_again = captured.prepared[-1]
    assert is_again
    assert rows.host_sequence_lengths.tolist() == [8, 6, 7]
    assert rows.host_query_starts.tolist() == [0, 1, 2, 3]
    assert (rows.max_query_length, rows.max_sequence_length, rows.num_tokens) == (1, 9, 4)
    inputs = captured.inputs[-1]
    assert inputs.tokens.tolist() == [-1, 9, -1, 0]
    assert inputs.token_slots.tolist() == inputs.slots.tolist() == [2, 0, 1, 0]
    assert inputs.sequence_lengths.tolist() == [8, 6, 7, 0]
    assert inputs.slot_mapping.tolist() == [[*batch.host.slot_mapping.tolist(), -1]]
    assert inputs.query_starts.tolist() == [0, 1, 2, 3, 3]


def test_a_mixed_step_pads_tokens_and_rows() -> None:
    captured = Pass(Bucket(8, 8, 4), Bucket(1, 4, 4))
    planner = Planner()
    for slot in range(3):
        planner.start(slot)
    planner.step(Row(1, [1, 1]))
    batch = load(*planner.step(Row(1, [-1, 6]), Row(2, [7, 8, 9]), Row(0, [5])))

    output = captured.steps.run(Bucket(8, 8, 4), batch)

    assert output.tolist() == [[20], [30], [0], [10], [20], [0]]
    assert (captured.prepared[-1][0].max_query_length, captured.prepared[-1][0].num_tokens) == (8, 8)
    inputs = captured.inputs[0]
    assert inputs.tokens.tolist() == [-1, 6, 7, 8, 9, 5, 0, 0]
    assert inputs.token_slots.tolist() == [1, 1, 2, 2, 2, 0, 0, 0]
    assert inputs.slot_mapping.tolist() == [[*batch.host.slot_mapping.tolist(), -1, -1]]
    assert inputs.slots.tolist() == [1, 2, 0, 0]
    assert inputs.sequence_lengths.tolist() == [4, 3, 1, 0]
    assert inputs.query_starts.tolist() == [0, 2, 5, 6, 6]
    # Triton would compile other kernels for other alignments.
    for tensor in (*inputs.slot_mapping, inputs.tokens, inputs.slots, inputs.sequence_lengths, inputs.query_starts):
        assert (tensor.data_ptr() - inputs.tokens.data_ptr()) % 64 == 0


def test_a_step_takes_a_graph_with_room_that_is_not_much_larger() -> None:
    captured = Pass(Bucket(512, 512, 4), Bucket(64, 64, 4), Bucket(1, 2, 2))
    planner = Planner(num_blocks=200)
    for slot in range(5):
        planner.start(slot)

    def bucket_of(*rows: Row) -> Bucket | None:
        return captured.steps.bucket_of(load(*planner.step(*rows)))

    assert bucket_of(Row(0, [1]), Row(1, [2])) == Bucket(1, 2, 2)
    assert bucket_of(Row(0, [-1]), Row(1, [2, 3])) == Bucket(64, 64, 4)
    assert bucket_of(*(Row(slot, [4]) for slot in range(3))) == Bucket(64, 64, 4)
    assert bucket_of(*(Row(slot, [4]) for slot in range(5))) is None
    assert bucket_of(Row(2, [1] * 255)) is None
    assert bucket_of(Row(2, [1] * 256)) == Bucket(512, 512, 4)
    assert bucket_of(Row(3, [1] * 513)) is None


class FakeStream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def wait_stream(self, other: "FakeStream") -> None:
        self._log.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """What a capture uses of `torch.cuda`; keeps what was done, with the stream that it was done on."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.num_streams = self.num_pools = 0
        self._current = FakeStream("default", self.log)

    def graph_pool_handle(self) -> str:
        self.num_pools += 1
        return f"pool {self.num_pools}"

    def Stream(self) -> FakeStream:  # noqa: N802 - torch's name
        self.num_streams += 1
        return FakeStream(f"stream {self.num_streams}", self.log)

    def current_stream(self) -> FakeStream:
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    @contextmanager
    def graph(self, graph: "FakeGraph", *, pool: str, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        self.log.append(f"{capture_error_mode} capture into {pool}")
        with self.stream(stream):
            yield

    def CUDAGraph(self) -> "FakeGraph":  # noqa: N802 - torch's name
        return FakeGraph(self.log)

    def mem_get_info(self) -> tuple[int, int]:
        return 5, 9

    def compute(self, size: int) -> Tensor:
        self.log.append(f"{size} on {self._current.name}")
        return torch.zeros(size)


class FakeGraph:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def replay(self) -> None:
        self._log.append("replay")


def test_all_sizes_are_warmed_up_and_captured_on_one_stream_into_one_pool() -> None:
    """cuBLAS keeps a workspace for each stream, which would be taken after the KV cache was sized."""
    cuda = FakeCuda()
    capture, expected = CudaCapture(cuda), []
    for size in (8, 4, 2):
        output, replay = capture(partial(cuda.compute, size))
        assert len(output) == size
        replay()
        expected += ["stream 1 waits for default", f"{size} on stream 1", "default waits for stream 1"]
        expected += ["thread_local capture into pool 1", f"{size} on stream 1", "replay"]
    assert cuda.log == expected
    assert (cuda.num_streams, cuda.num_pools, capture.free_bytes()) == (1, 1, 5)


class TwoRanks(RankGroup):
    """Rank 1 of two; what rank 0 broadcasts is known beforehand."""

    def __init__(self, *broadcasts: int) -> None:
        super().__init__(1, 2)
        self._broadcasts = list(broadcasts)

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor.fill_(self._broadcasts.pop(0))


def test_all_ranks_capture_as_many_graphs_as_rank_0() -> None:
    """They compute each together before it is captured, so one that went on alone would wait forever."""
    seconds = iter([0.0, 0.0, 1000.0])
    budget = CaptureBudget(Recorder(), lambda: next(seconds), TwoRanks(0, 1), CPU)
    assert not budget.is_left()
    assert budget.is_left()


def test_graphs_are_captured_for_a_bounded_time() -> None:
    times = iter([0.0, MAX_CAPTURE_SECONDS - 0.1, MAX_CAPTURE_SECONDS])
    budget = CaptureBudget(Recorder(), lambda: next(times), RankGroup(), CPU)
    assert budget.is_left()
    assert not budget.is_left()


@pytest.mark.parametrize(
    ("num_graphs", "replays", "draws"), [(1, [], [8]), (4, [], [2]), (5, [8], [2]), (8, [2], [2]), (9, [2], [2])]
)
def test_the_time_for_graphs_is_that_of_sampling_decode_and_mixed_steps(
    model: str, num_graphs: int, replays: list[int], draws: list[int]
) -> None:
    """What has no graph then is computed op by op."""
    recorder = Recorder()
    config = worker_config(model, kernel_backend="reference")

    def clock() -> float:
        return MAX_CAPTURE_SECONDS * (recorder.captures >= num_graphs)

    runner = ModelRunner(config, RankGroup(), clock, device=CPU)
    runner.load()
    runner.call("allocate", (64, 0))
    runner.capture(recorder)
    assert recorder.captures == num_graphs
    planner = Planner()
    for slot in range(2):
        planner.start(slot)
    run(runner, planner.step(*(Row(slot, [5, 7, 9]) for slot in range(2))))
    recorder.replays.clear()
    recorder.draws.clear()
    run(runner, planner.step(*(Row(slot, [-1]) for slot in range(2))))
    assert (recorder.replays, recorder.draws) == (replays, draws)


def test_what_was_set_aside_for_graphs_is_theirs_beside_half_of_the_rest() -> None:
    free = iter([100, 41, 40, 39])

    class Small(Recorder):
        def free_bytes(self) -> int:
            return next(free)

    budget = CaptureBudget(Small(), lambda: 0.0, RankGroup(), CPU, planned_bytes=20)
    assert [budget.is_left() for _ in range(3)] == [True, True, False]


def test_half_of_a_small_memory_stays_free() -> None:
    free = iter([100, 50, 49])

    class Small(Recorder):
        def free_bytes(self) -> int:
            return next(free)

    budget = CaptureBudget(Small(), lambda: 0.0, RankGroup(), CPU)
    assert budget.is_left()
    assert not budget.is_left()


@pytest.fixture
def recorded(model: str) -> tuple[ModelRunner, Recorder]:
    runner, recorder = loaded_runner(model, device=CPU, kernel_backend="reference"), Recorder()
    runner.capture(recorder)
    return runner, recorder


def test_replayed_steps_give_the_tokens_and_the_cache_of_computed_ones(
    model: str, recorded: tuple[ModelRunner, Recorder]
) -> None:
    plain, (replaying, recorder) = loaded_runner(model, device=CPU, kernel_backend="reference"), recorded
    prompts = [[5, 17, 200], [9] * 20, [40, 41, 42, 43]]
    tokens, caches = [], []
    for runner in (plain, replaying):
        planner = Planner()
        for slot in range(3):
            planner.start(slot)
        columns = [run(runner, planner.step(*(Row(slot, prompt) for slot, prompt in enumerate(prompts))))]
        columns += [run(runner, planner.step(*(Row(slot, [-1]) for slot in (2, 0, 1)))) for _ in range(3)]
        columns.append(run(runner, planner.step(Row(1, [-1]), Row(0, [-1], uniforms=()))))
        tokens.append(columns)
        hook = Hook()
        runner.add_attention_hook(hook)
        run(runner, planner.step(Row(2, [-1])))
        caches.append({layer: (cached.keys, cached.values) for layer, cached in hook.cached.items()})
    assert recorder.replays == [32, 4, 4, 4, 2]
    assert recorder.draws == [4, 4, 4, 4, 1, 1]
    assert tokens[0] == tokens[1]
    torch.testing.assert_close(caches[1], caches[0], atol=1e-5, rtol=1e-5)


def planning_backend(device: torch.device) -> AttentionBackend:
    """Attention that reads what was planned on the host, from memory that stays where it is."""
    attend = select("reference", device)[paged_attention]

    def prepare(batch: AttentionBatch, group: AttentionGroup) -> AttentionMetadata:
        metadata = batch.metadata(group)
        lengths = torch.empty_like(batch.slots) if batch.captured is None else batch.captured.tasks
        host = batch.host_sequence_lengths
        assert (host[1:] >= 0).all()
        lengths.zero_()[: len(host)] = torch.from_numpy(host.copy())
        return replace(metadata, tasks=lengths)

    def planned(
        query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata, layer: AttentionLayer
    ) -> Tensor:
        return attend(query, keys, values, replace(metadata, sequence_lengths=metadata.tasks), layer)

    return AttentionBackend(prepare, planned, in_graphs=True)


def test_a_backend_that_plans_on_the_host_plans_each_replay(
    model: str, recorded: tuple[ModelRunner, Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_backend(tmp_path, monkeypatch, f"{__name__}:planning_backend")
    runner, recorder = (
        loaded_runner(model, device=CPU, kernel_backend="reference", attention_backend="theirs"),
        Recorder(),
    )
    runner.capture(recorder)
    tokens = []
    for each in (recorded[0], runner):
        planner = Planner()
        for slot in range(3):
            planner.start(slot)
        columns = [run(each, planner.step(*(Row(slot, [5, 7, 9][: slot + 1]) for slot in range(3))))]
        columns += [run(each, planner.step(*(Row(slot, [-1]) for slot in (2, 0, 1)))) for _ in range(20)]
        tokens.append(columns)
    assert tokens[0] == tokens[1]
    assert recorder.replays == [16] + [4] * 20
    assert recorder.draws == [4] * 21


def test_hooks_are_passed_by_all_the_same(recorded: tuple[ModelRunner, Recorder]) -> None:
    runner, recorder = recorded
    hook = Hook()
    runner.add_attention_hook(hook)
    planner = Planner()
    planner.start(0)
    run(runner, planner.step(Row(0, [1, 2])))
    run(runner, planner.step(Row(0, [-1])))
    assert hook.calls == 4
    assert recorder.replays == []
