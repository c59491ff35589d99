"""What a runner draws from a step."""

from itertools import pairwise

import numpy as np
import torch
from transformers import LlamaForCausalLM

from pyllm.wire.messages import Sampling
from pyllm.workers.model_runner import ModelRunner
from tests.plans import Planner, Row
from tests.workers.continuations import PROMPTS
from tests.workers.engine import run

FLAT = Sampling(temperature=1e9)  # Every token is equally likely: the uniform number alone decides.


def test_a_step_may_sample_nothing(runner: ModelRunner) -> None:
    planner = Planner()
    planner.start(0)
    step, frame = planner.step(Row(0, PROMPTS[0], uniforms=()))
    sampled = runner.run(step, frame)
    assert (sampled.step, sampled.starts, sampled.tokens) == (step.step, bytes(8), b"")


def test_the_uniform_number_chooses_and_a_row_may_choose_several_times(runner: ModelRunner) -> None:
    planner = Planner()
    planner.start(0, FLAT)
    planner.start(1)
    uniforms = (0.0001, 0.5001, 0.9999)
    step, frame = planner.step(Row(0, PROMPTS[1], uniforms), Row(1, PROMPTS[1], ()), Row(1, PROMPTS[0], (0.9,)))
    sampled = runner.run(step, frame)
    tokens = np.frombuffer(sampled.tokens, np.int32).tolist()
    assert tokens[:3] == [0, 145, 289]
    assert np.frombuffer(sampled.starts, np.int32).tolist() == [0, 3, 3, 4]


def test_a_fork_goes_on_with_its_parents_parameters_tokens_and_cache(
    runner: ModelRunner, expected: list[list[int]]
) -> None:
    planner = Planner()
    planner.start(0)
    first = run(runner, planner.step(Row(0, PROMPTS[0])))
    planner.fork(0, 6)
    # The parent leaves the path; the fork, in a copied block, does not notice.
    assert run(runner, planner.step(Row(0, [77]), Row(6, [-1])))[1] == expected[0][1]
    assert run(runner, planner.step(Row(6, [-1]), Row(0, [-1])))[0] == expected[0][2]
    assert first == expected[0][:1]


def test_slots_are_copied_before_they_are_initialised(runner: ModelRunner, expected: list[list[int]]) -> None:
    planner = Planner()
    planner.start(0)
    run(runner, planner.step(Row(0, PROMPTS[0])))
    planner.fork(0, 1)
    planner.start(0, FLAT)
    assert run(runner, planner.step(Row(0, PROMPTS[1], (0.9999,)), Row(1, [-1]))) == [289, expected[0][1]]


def test_log_probabilities_are_those_of_transformers(model: str, runner: ModelRunner) -> None:
    prompt = PROMPTS[0]
    oracle = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        expected = oracle(torch.tensor([prompt])).logits[0].log_softmax(-1)
    planner = Planner()
    planner.start(0, Sampling(temperature=0.0, logprobs=3, prompt_logprobs=2), (prompt, []))
    told = []
    for chunk in (Row(0, prompt[:7], ()), Row(0, prompt[7:])):
        sampled = runner.run(*planner.step(chunk))
        assert sampled.logprobs is not None
        starts, ids, ranks = (
            np.frombuffer(column, np.int32)
            for column in (sampled.logprobs.starts, sampled.logprobs.ids, sampled.logprobs.ranks)
        )
        values = np.frombuffer(sampled.logprobs.values, np.float32)
        told += [(ids[a:b].tolist(), values[a:b], ranks[a:b].tolist()) for a, b in pairwise(starts.tolist())]
    assert len(told) == len(prompt)
    for position, (ids, values, ranks) in enumerate(told):
        row = expected[position]
        token = prompt[position + 1] if position + 1 < len(prompt) else int(row.argmax())
        num_top = 2 if position + 1 < len(prompt) else 3
        assert ids == [token, *row.topk(num_top).indices.tolist()]
        assert ranks == [int((row >= row[token]).sum()), *range(1, num_top + 1)]
        torch.testing.assert_close(torch.from_numpy(values.copy()), row[ids], atol=1e-4, rtol=1e-4)
