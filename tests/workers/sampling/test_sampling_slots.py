"""What requests ask, by slot: copies and initialisations, whatever they touch."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import ConfigError, ProtocolError
from pyllm.wire.messages import POOLING, Sampling
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.grammar.token_masks import Grammars
from pyllm.workers.sampling.sampling_slots import SamplingSlots
from pyllm.workers.step.batch import Batch, PlanBuffer, gather
from tests.plans import Planner, Row, encode

NUM_SLOTS = 6


def no_grammars() -> Grammars:
    raise ConfigError("this model has no grammars")


@pytest.fixture
def slots() -> SamplingSlots:
    return SamplingSlots(NUM_SLOTS, 100, no_grammars)


def step(planner: Planner, *rows: Row) -> Batch:
    header, frame = planner.step(*rows)
    return PlanBuffer(HostDevice()).load(header.counts, frame)


def test_parameters_follow_their_slot(slots: SamplingSlots) -> None:
    planner = Planner()
    planner.start(1, Sampling(0.5, 40, 0.9, 0.1, logprobs=3))
    planner.start(3, Sampling(top_k=-1))
    slots.apply(step(planner, Row(1, [5], ()), Row(3, [6], ())))
    planner.fork(1, 5)
    slots.apply(step(planner, Row(5, [8])))
    rows = slots.rows(np.array([3, 5, 1], np.int32))
    assert rows.temperature.tolist() == [1.0, 0.5, 0.5]
    assert rows.top_k.tolist() == [0, 40, 40]
    assert rows.top_p.tolist() == pytest.approx([1.0, 0.9, 0.9])
    assert rows.min_p.tolist() == pytest.approx([0.0, 0.1, 0.1])
    assert slots.num_logprobs[[3, 5, 1]].tolist() == [-1, 3, 3]
    assert int(slots.has_state.sum()) == 0


def test_a_slot_that_starts_again_forgets_everything(slots: SamplingSlots) -> None:
    planner = Planner()
    allowed = np.array([3], np.int32).tobytes()
    asked = Sampling(0.0, 3, 0.2, 0.3, presence_penalty=1.0, allowed_token_ids=allowed, logprobs=2, prompt_logprobs=1)
    planner.start(0, asked, ([5, 6], [7]))
    slots.apply(step(planner, Row(0, [5, 6, 7])))
    assert (int(slots.has_state.sum()), list(slots.constraints), list(slots.prompts)) == (1, [0], [0])
    assert slots.known_tokens(0, 1).tolist() == [6, 7]
    planner.start(0, Sampling())
    slots.apply(step(planner, Row(0, [5])))
    rows = slots.rows(np.array([0], np.int32))
    assert [float(row[0]) for row in (rows.temperature, rows.top_k, rows.top_p, rows.min_p)] == [1.0, 0.0, 1.0, 0.0]
    assert (int(slots.has_state.sum()), slots.constraints, slots.prompts) == (0, {}, {})
    assert not slots.is_constrained.any()
    assert slots.num_logprobs[0] == -1
    assert not len(slots.known_tokens(0, 0))


def test_a_fork_takes_all_along_but_the_prompt_that_is_told_of(slots: SamplingSlots) -> None:
    planner = Planner()
    planner.start(2, Sampling(logit_bias={4: 1.0}, allowed_token_ids=bytes(4), prompt_logprobs=0), ([5, 6], []))
    slots.apply(step(planner, Row(2, [5, 6])))
    planner.fork(2, 0)
    slots.apply(step(planner, Row(0, [7])))
    assert int(slots.has_state.sum()) == 2
    assert slots.known_tokens(0, 0).tolist() == [5, 6]
    assert sorted(slots.constraints) == [0, 2]
    assert list(slots.prompts) == [2]


def test_a_fork_without_state_leaves_none_in_a_slot_that_had_some(slots: SamplingSlots) -> None:
    planner = Planner()
    planner.start(0, Sampling(presence_penalty=1.0, allowed_token_ids=bytes(4)), ([5, 6], []))
    planner.start(1)
    slots.apply(step(planner, Row(0, [5, 6]), Row(1, [5], ())))
    planner.fork(1, 0)
    slots.apply(step(planner, Row(0, [7])))
    assert not slots.has_state.any()
    assert (slots.known_tokens(0, 0).tolist(), slots.constraints) == ([], {})


def test_what_cannot_be_made_is_kept_as_the_requests_failure(slots: SamplingSlots) -> None:
    planner = Planner()
    planner.start(0, Sampling(grammar="start: /a/"), ([5], []))
    planner.start(1, Sampling(extra_args={"nobody": {}}), ([5], []))
    slots.apply(step(planner, Row(0, [5]), Row(1, [5])))
    assert slots.constraints[0].failure == "this model has no grammars"
    assert "nobody" in slots.constraints[1].failure


def test_a_rank_that_does_not_sample_knows_prompts_alone() -> None:
    slots = SamplingSlots(NUM_SLOTS, 100, None)
    planner = Planner()
    planner.start(0, Sampling(grammar="start: /a/", prompt_logprobs=2), ([5, 6], [7]))
    slots.apply(step(planner, Row(0, [5, 6, 7])))
    assert slots.prompts[0].tokens.tolist() == [5, 6]
    assert slots.constraints == {}


def test_parameters_that_do_not_decode_are_a_broken_plan(slots: SamplingSlots) -> None:
    sampling = msgspec.msgpack.encode(["hot"])
    sections = {
        "slot_inits": [0],
        "sampling_starts": [0, len(sampling)],
        "sampling": np.frombuffer(sampling, np.uint8),
    }
    with pytest.raises(ProtocolError, match="slot 0"):
        slots.apply(PlanBuffer(HostDevice()).load(*encode(sections)))


@given(st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(0, NUM_SLOTS - 1)), max_size=8))
def test_pairs_are_one_gather(pairs: list[tuple[int, int]]) -> None:
    expected = list(range(NUM_SLOTS))
    for source, destination in pairs:
        expected[destination] = expected[source]
    origins = np.arange(NUM_SLOTS)
    sources, destinations = gather(np.array(pairs, np.int32).ravel())
    origins[destinations] = origins[sources]
    assert origins.tolist() == expected


def test_what_the_kernels_refuse_fails_its_request_alone(slots: SamplingSlots) -> None:
    planner = Planner()
    planner.start(0, Sampling(repetition_penalty=1e-50), ([5], []))
    slots.apply(step(planner, Row(0, [5])))
    assert "repetition" in slots.constraints[0].failure
    assert slots.known_tokens(0, 0).tolist() == [5]


def test_a_prompt_that_is_told_of_changes_no_logits(slots: SamplingSlots) -> None:
    planner = Planner()
    planner.start(0, Sampling(prompt_logprobs=1), ([5, 6], []))
    slots.apply(step(planner, Row(0, [5, 6])))
    assert list(slots.prompts) == [0]
    assert not slots.has_state.any()


def test_a_fork_into_a_slot_whose_prompt_was_never_finished_tells_of_no_prompt(slots: SamplingSlots) -> None:
    planner = Planner()
    planner.start(0, Sampling(prompt_logprobs=1), ([5, 6, 7], []))
    planner.start(1, POOLING["mean"])
    planner.start(2)
    slots.apply(step(planner, Row(0, [5], ()), Row(1, [5], ()), Row(2, [9, 9])))
    assert (list(slots.prompts), slots.pooling.tolist()) == ([0], [0, 2, 0, 0, 0, 0])
    planner.fork(2, 0)
    planner.fork(2, 1)
    slots.apply(step(planner, Row(0, [4]), Row(1, [3])))
    assert (slots.prompts, slots.pooling.any()) == ({}, False)


@pytest.mark.parametrize(
    ("sampling", "may_jump"),
    [
        (Sampling(grammar="start: /a/"), True),
        (Sampling(grammar="start: /a/", logit_bias={5: -100.0}, repetition_penalty=2.0), True),
        (Sampling(grammar="start: /a/", bad_words=(bytes(4),)), False),
        (Sampling(grammar="start: /a/", allowed_token_ids=bytes(4)), False),
        (Sampling(grammar="start: /a/", extra_args={"nobody": {}}), False),
        (Sampling(grammar="start: /a/", min_tokens=1), False),
        (Sampling(grammar="start: /a/", logprobs=0), False),
    ],
)
def test_what_may_exclude_a_token_or_tells_of_it_needs_every_step(
    slots: SamplingSlots, sampling: Sampling, may_jump: bool
) -> None:
    planner = Planner()
    planner.start(0, sampling, ([5], []))
    slots.apply(step(planner, Row(0, [5])))
    assert slots.constraints[0].may_jump is may_jump
