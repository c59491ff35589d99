"""Decode steps that are recorded once and replayed: the same tokens and the same cache as without."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pyllm_kernels import AttentionLayer, AttentionMetadata, select
from torch import Tensor

from pyllm.workers.attention_backends import AttentionBackend
from pyllm.workers.cuda_graphs import DecodeGraphs, DecodeInputs, Metadata, capture_sizes, is_decode
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.step.attention_batch import AttentionBatch, AttentionGroup, Ints
from pyllm.workers.step.batch import PlanBuffer
from pyllm.workers.step.forward_context import ForwardContext
from tests.plans import Planner, Row
from tests.tiny_model import write_tiny_model
from tests.workers.engine import loaded_runner, offer_backend, run

CPU = torch.device("cpu")


class Recorder:
    """Stands where CUDA records: what is replayed is computed anew, into the same memory."""

    def __init__(self) -> None:
        self.replays: list[int] = []

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        output = compute()

        def replay() -> None:
            self.replays.append(len(output))
            output.copy_(compute())

        return output, replay


class Hook:
    """Counts layers, and keeps the cache that they work on."""

    def __init__(self) -> None:
        self.calls = 0
        self.memory = torch.empty(0)

    def before_attention(self, layer: int, context: ForwardContext) -> None:
        self.calls += 1
        self.memory = context.kv_cache.memory

    def after_attention(self, layer: int, output: Tensor, context: ForwardContext) -> Tensor:
        return output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("max_num_seqs", "first", "last", "number"),
    [
        (1, [1], [1], 1),
        (3, [1, 2, 3], [3], 3),
        (20, [1, 2, 4, 8, 16, 20], [20], 6),
        (300, [1, 2, 4, 8], [288, 300], 38),
    ],
)
def test_sizes_are_dense_where_batches_are_small(
    max_num_seqs: int, first: list[int], last: list[int], number: int
) -> None:
    sizes = capture_sizes(max_num_seqs)
    assert sizes[: len(first)] == first
    assert sizes[-len(last) :] == last
    assert len(sizes) == number
    assert capture_sizes(10_000)[-1] == 512


def test_a_batch_takes_the_next_larger_pass_and_pads_it() -> None:
    seen: list[DecodeInputs] = []
    prepared: list[tuple[list[int], bool]] = []

    def prepare(inputs: DecodeInputs, lengths: Ints, captured: Metadata | None) -> Metadata:
        prepared.append((lengths.tolist(), captured is None))
        slots, starts = inputs.slots, inputs.query_starts
        return (AttentionMetadata(slots, slots, starts, inputs.sequence_lengths, 1, 9, len(slots)),)

    def forward(inputs: DecodeInputs, attention: Metadata) -> Tensor:
        assert attention[0].slots is inputs.slots
        seen.append(inputs)
        return inputs.positions.unsqueeze(-1) * 10

    recorder = Recorder()
    graphs = DecodeGraphs(prepare, forward, [4, 2, 8], CPU, recorder)
    assert graphs.max_rows == 8
    planner = Planner()
    for slot in range(3):
        planner.start(slot)
    planner.step(*(Row(slot, [1] * (slot + 5)) for slot in range(3)))
    step, frame = planner.step(Row(2, [-1]), Row(0, [9]), Row(1, [-1]))
    host = PlanBuffer(CPU).load(step.counts, frame).host

    output = graphs.run(host)

    assert recorder.replays == [4]
    assert prepared == [([0] * 8, True), ([0] * 4, True), ([0] * 2, True), ([8, 6, 7], False)]
    assert output.tolist() == [[70], [50], [60]]
    inputs = seen[-1]
    assert inputs.tokens.tolist() == [-1, 9, -1, 0]
    assert inputs.slots.tolist() == [2, 0, 1, 0]
    assert inputs.sequence_lengths.tolist() == [8, 6, 7, 0]
    assert inputs.slot_mapping.tolist() == [[*host.slot_mapping.tolist(), -1]]
    assert inputs.query_starts.tolist() == [0, 1, 2, 3, 4]


def test_one_token_a_row_is_a_decode() -> None:
    planner = Planner()
    planner.start(0)
    planner.start(1)
    buffer = PlanBuffer(CPU)

    def decodes(*rows: Row) -> bool:
        step, frame = planner.step(*rows)
        return is_decode(buffer.load(step.counts, frame).host)

    assert not decodes(Row(0, [1, 2, 3]), Row(1, [4]))
    assert decodes(Row(1, [-1]), Row(0, [-1]))
    assert not decodes(Row(1, [1, 2]), Row(0, []))


@pytest.fixture
def recorded(model: str) -> tuple[ModelRunner, Recorder]:
    runner, recorder = loaded_runner(model, kernel_backend="reference"), Recorder()
    runner.capture(recorder)
    return runner, recorder


def test_replayed_steps_give_the_tokens_and_the_cache_of_computed_ones(
    model: str, recorded: tuple[ModelRunner, Recorder]
) -> None:
    plain, (replaying, recorder) = loaded_runner(model, kernel_backend="reference"), recorded
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
        caches.append(hook.memory)
    assert recorder.replays == [4, 4, 4, 2]
    assert tokens[0] == tokens[1]
    torch.testing.assert_close(caches[1], caches[0], atol=1e-5, rtol=1e-5)


def planning_backend(device: torch.device) -> AttentionBackend:
    """Attention that reads what was planned on the host, from memory that stays where it is."""
    attend = select("reference", device).paged_attention

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
    runner, recorder = loaded_runner(model, kernel_backend="reference", attention_backend="theirs"), Recorder()
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
    assert recorder.replays == [4] * 20


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
