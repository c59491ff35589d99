"""Head and sampling within a graph give the tokens of the ops, and leave to the ops what a graph cannot hold."""

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyllm_kernels import select

from pyllm.wire.messages import Sampled, Sampling, Step
from pyllm.workers.cuda_graphs import Capture, CaptureBudget, decode_buckets
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.forward_pass import Limits
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.sampling.sampler import sample_on_device
from pyllm.workers.sampling.sampling_slots import SamplingSlots
from pyllm.workers.sampling.token_sampler import Draw, TokenSampler
from pyllm.workers.sampling_graphs import DeviceSampler, SamplingGraphs, graph_bytes
from pyllm.workers.step.batch import Batch, PlanBuffer
from pyllm.workers.step.slots import Slots
from tests.plans import GREEDY, Planner, Row
from tests.tiny_model import write_tiny_model
from tests.workers.engine import loaded_runner
from tests.workers.fake_capture import FakeCapture
from tests.workers.sampling.test_token_sampler import no_grammars
from tests.workers.sampling.triton_sampler import sample_by_triton, sample_by_triton_on_device
from tests.workers.test_cuda_graphs import Recorder
from tests.workers.test_forward_pass import make_pair

CPU = TorchDevice(torch.device("cpu"))
NUM_SLOTS, HIDDEN_SIZE, VOCABULARY = 5, 8, 60

# What no graph holds.
NEEDS_MORE: dict[str, dict[str, Any]] = {
    "penalty": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": {7: 4.0}},
    "minimum": {"min_tokens": 3, "stop_token_ids": np.array([1], np.int32).tobytes()},
    "allowed": {"allowed_token_ids": np.arange(30, dtype=np.int32).tobytes()},
    "log-probabilities": {"logprobs": 2},
}


def endless(capture: Capture) -> CaptureBudget:
    return CaptureBudget(capture, lambda: 0.0, RankGroup(), CPU)


class Engine:
    """Sampling graphs of a head of few bits, whose products are exact."""

    def __init__(self, capture: FakeCapture, sample: DeviceSampler, num_slots: int = NUM_SLOTS) -> None:
        generator = torch.Generator().manual_seed(3)
        weight = torch.randint(-3, 4, (HIDDEN_SIZE, VOCABULARY), generator=generator) / 4
        self.hidden = torch.randint(-2, 3, (200, HIDDEN_SIZE), generator=generator).float()
        self.logits = self.hidden @ weight
        self.sampling_slots = SamplingSlots(num_slots, VOCABULARY, no_grammars)
        self.slots = Slots(num_slots, 4, CPU)
        self.sampler = TokenSampler(self.sampling_slots, CPU)
        self.graphs = SamplingGraphs(
            lambda hidden: hidden @ weight,
            capture.launched(sample),
            self.slots,
            self.sampler,
            max_num_seqs=num_slots,
            hidden_size=HIDDEN_SIZE,
            dtype="float32",
            group=RankGroup(),
        )
        self.graphs.capture(capture, endless(capture))

    def draw(self, batch: Batch) -> Draw | None:
        self.sampler.follow(batch)
        return self.graphs.draw(0, batch, self.hidden)


def load(step: Step, frame: bytes) -> Batch:
    return PlanBuffer(CPU).load(step.counts, frame)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.1, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([1.0, 0.9, 0.4]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)
# How many tokens each row has, and samples: a chunk has none, and a prompt may have several.
steps = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=NUM_SLOTS)


@pytest.fixture(scope="module")
def capture() -> FakeCapture:
    return FakeCapture()


@pytest.fixture(scope="module")
def engine(capture: FakeCapture) -> Engine:
    with torch.inference_mode():
        return Engine(capture, sample_by_triton_on_device)


@settings(max_examples=15, phases=[Phase.generate])  # Triton's interpreter would shrink for minutes.
@given(st.lists(samplings, min_size=NUM_SLOTS, max_size=NUM_SLOTS), steps, st.integers(0, 99))
@torch.inference_mode()
def test_a_graph_draws_what_the_ops_draw(
    engine: Engine, parameters: list[Sampling], sizes: list[tuple[int, int]], seed: int
) -> None:
    generator, planner, expected = random.Random(seed), Planner(), Slots(NUM_SLOTS, 4, CPU)
    engine.slots.last_tokens.zero_()
    for slot, sampling in enumerate(parameters):
        planner.start(slot, sampling)
    slots = generator.sample(range(NUM_SLOTS), len(sizes))
    rows = [
        Row(slot, [1] * num_tokens, tuple(generator.random() for _ in range(num_samples)))
        for slot, (num_tokens, num_samples) in zip(slots, sizes, strict=True)
    ]
    batch = load(*planner.step(*rows))
    draw = engine.draw(batch)
    if len(batch.host.uniforms) > NUM_SLOTS:
        assert draw is None
        return
    assert draw is not None
    columns = engine.sampling_slots.rows(np.repeat(batch.host.slots, np.diff(batch.host.sampled_starts)))
    tokens = sample_by_triton(engine.logits, columns, batch.device.uniforms, CPU, batch.host.logits_rows)
    expected.remember(batch, tokens)
    assert draw.tokens.wait().tolist() == tokens.tolist()
    assert engine.slots.last_tokens.tolist() == expected.last_tokens.tolist()


@torch.inference_mode()
def test_a_draw_takes_the_smallest_graph_with_room(engine: Engine, capture: FakeCapture) -> None:
    planner = Planner()
    for slot in range(NUM_SLOTS):
        planner.start(slot)
    taken = []
    for num_rows in range(1, NUM_SLOTS + 1):
        engine.draw(load(*planner.step(Row(0, [1], ()), *(Row(slot, [1]) for slot in range(1, num_rows)))))
        taken.append(capture.replays[-1])
    assert taken[1:] == [1, 2, 4, 4]
    engine.draw(load(*planner.step(*(Row(slot, [1]) for slot in range(NUM_SLOTS)))))
    assert capture.replays[-1] == NUM_SLOTS


@torch.inference_mode()
def test_where_nothing_can_be_drawn_the_step_says_so_and_the_next_one_reads_a_token(engine: Engine) -> None:
    planner = Planner()
    planner.start(0)
    planner.start(1)
    batch = load(*planner.step(Row(0, [1]), Row(1, [1])))
    engine.sampler.follow(batch)
    hidden = engine.hidden.clone()
    hidden[0] = torch.nan
    engine.slots.last_tokens.fill_(77)
    draw = engine.graphs.draw(0, batch, hidden)
    assert draw is not None
    sampled = engine.sampler.finish(draw)
    best = int(engine.logits[1].argmax())
    assert np.frombuffer(sampled.tokens, np.int32).tolist() == [0, best]
    assert sampled.failures == {0: "the model's logits are not numbers"}
    assert engine.slots.last_tokens[:3].tolist() == [0, best, 77]


@pytest.mark.parametrize("name", NEEDS_MORE)
@torch.inference_mode()
def test_a_row_that_needs_more_is_left_to_the_ops(engine: Engine, capture: FakeCapture, name: str) -> None:
    planner = Planner()
    planner.start(0, GREEDY)
    planner.start(1, Sampling(**NEEDS_MORE[name]), ([1], []))
    num_replays = len(capture.replays)
    batch = load(*planner.step(Row(0, [1]), Row(1, [1])))
    assert engine.draw(batch) is None
    assert len(capture.replays) == num_replays
    # A rank that does not sample must come to the same answer, or it waits for the others forever.
    other = TokenSampler(SamplingSlots(NUM_SLOTS, VOCABULARY, None), CPU)
    other.follow(batch)
    assert other.plain_rows(batch) is None
    assert engine.draw(load(*planner.step(Row(0, [1])))) is not None
    planner.start(1)
    assert engine.draw(load(*planner.step(Row(0, [1]), Row(1, [1])))) is not None


@torch.inference_mode()
def test_the_memory_of_the_graphs_is_known_beforehand() -> None:
    capture = FakeCapture()
    engine = Engine(capture, sample_on_device, num_slots=24)
    assert len(capture.num_bytes) == len(decode_buckets(24))
    assert capture.num_bytes == sorted(capture.num_bytes, reverse=True)
    buffers = engine.hidden.element_size() * 24 * HIDDEN_SIZE
    known = graph_bytes(24, HIDDEN_SIZE, VOCABULARY, "float32", RankGroup())
    # Beside the logits a graph has its tokens, and again without what is negative.
    assert known - 24 * 4 * 8 <= buffers + capture.num_bytes[0] <= known


@pytest.mark.parametrize(
    ("rank", "ranks", "num_logits"), [(0, 1, 60), (0, 4, 15 + 60 + 60), (3, 4, 15), (0, 7, 9 + 126)]
)
def test_the_first_of_several_ranks_has_room_for_all_logits_twice(rank: int, ranks: int, num_logits: int) -> None:
    none = graph_bytes(24, HIDDEN_SIZE, 0, "float32", RankGroup(rank, ranks))
    assert graph_bytes(24, HIDDEN_SIZE, VOCABULARY, "float32", RankGroup(rank, ranks)) - none == 24 * 4 * num_logits


@torch.inference_mode()
def test_bodies_and_sampling_share_the_memory_of_graphs(tmp_path: Path) -> None:
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64)
    both = make_pair(write_tiny_model(tmp_path), select("reference", CPU), limits)
    body, slots = both.captured.forward, both.captured.slots
    sampler = TokenSampler(SamplingSlots(4, 290, no_grammars), CPU)
    size = {"max_num_seqs": 4, "hidden_size": 48, "dtype": "float32", "group": RankGroup()}
    graphs = SamplingGraphs(body.head, both.capture.launched(sample_on_device), slots, sampler, **size)
    graphs.capture(both.capture, endless(both.capture))
    for slot in range(4):
        both.planner.start(slot)
    prompts = [Row(slot, [3 + slot] * (slot + 1)) for slot in range(4)]
    for rows in (prompts, *[[Row(slot, [-1]) for slot in (2, 0, 3)]] * 5, [Row(1, [-1]), Row(0, [-1, 5, 6])]):
        plan = both.planner.step(*rows)
        both.eager.run(*plan)
        batch = load(*plan)
        slots.apply(batch)
        hidden = body.hidden(batch)
        sampler.follow(batch)
        draw = graphs.draw(0, batch, hidden)
        assert draw is not None
        assert draw.tokens.wait().tolist() == both.eager.sampled[-1].tolist()
    assert both.capture.replays == [16, 4] + [4, 4] * 5 + [16, 2]


def assert_same(found: Sampled, expected: Sampled) -> None:
    """Equal but for the rounding of log-probabilities, as padded steps may round otherwise."""
    pairs = []
    for sampled in (found, expected):
        values, logprobs = b"", sampled.logprobs
        if logprobs is not None:
            values, logprobs = logprobs.values, msgspec.structs.replace(logprobs, values=b"")
        pairs.append((msgspec.structs.replace(sampled, logprobs=logprobs), np.frombuffer(values, np.float32)))
    (found, values), (expected, others) = pairs
    assert found == expected
    np.testing.assert_allclose(values, others, atol=1e-4)


def test_a_runner_samples_steps_by_graphs_as_it_does_by_ops(tmp_path: Path) -> None:
    """Requests that need more come and go, in steps of every kind."""
    model = write_tiny_model(tmp_path)
    plain, captured = (loaded_runner(model, device=CPU, kernel_backend="reference") for _ in range(2))
    recorder = Recorder()
    captured.capture(recorder, sample_on_device)
    generator, planner, num_draws = random.Random(4), Planner(num_blocks=64), []
    more = dict.fromkeys(range(8), False)
    for _ in range(60):
        rows = []
        for slot in generator.sample(range(8), generator.randrange(1, 9)):
            if slot not in planner.lengths or generator.random() < 0.1:
                more[slot] = generator.random() < 0.1
                # The tokens of a prompt are scored before a graph overwrites their hidden states.
                plainly: dict[str, Any] = {"prompt_logprobs": 1} if generator.random() < 0.2 else {}
                chosen = NEEDS_MORE[generator.choice(list(NEEDS_MORE))] if more[slot] else plainly
                temperature, top_p = generator.choice([0.0, 0.7, 1.5]), generator.choice([1.0, 0.8])
                prompt = [generator.randrange(256) for _ in range(generator.randrange(1, 20))]
                planner.start(slot, Sampling(temperature=temperature, top_p=top_p, **chosen), (prompt, []))
                rows.append(Row(slot, prompt, (generator.random(),)))
            else:
                rows.append(Row(slot, [-1], (generator.random(),)))
        step = planner.step(*rows)
        num_before = len(recorder.draws)
        assert_same(captured.run(*step), plain.run(*step))
        num_draws.append(len(recorder.draws) - num_before)
        assert num_draws[-1] == (0 if any(more[row.slot] for row in rows) else 1)
    assert 10 < sum(num_draws) < 50
