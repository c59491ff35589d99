"""The runner against transformers on the same weights, and the meaning of every section of a plan."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from pyllm.checkpoint import read_checkpoint
from pyllm.errors import ConfigError, ProtocolError
from pyllm.messages import Sampling, Step
from pyllm.workers.runner import ModelRunner
from tests.plans import Planner, Row, encode
from tests.tiny_model import write_tiny_model
from tests.workers.engine import greedy, loaded_runner, run, worker_config

PROMPT = [5, 17, 200, 31, 8, 8, 250, 100, 3, 77, 41, 9, 160, 22, 61, 12, 33, 2, 90, 140]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def runner(model: str) -> ModelRunner:
    return loaded_runner(model)


@pytest.fixture(scope="module")
def oracle(model: str) -> Iterator[LlamaForCausalLM]:
    yield LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()


def oracle_tokens(oracle: LlamaForCausalLM, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy tokens, with the margin between the two best logits checked: closer than this would be a coin toss."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            best = oracle(torch.tensor([tokens])).logits[0, -1].topk(2)
            assert best.values[0] - best.values[1] > 1e-3, "choose another prompt"
            tokens.append(int(best.indices[0]))
    return tokens[len(prompt) :]


def test_the_embedded_model_knows_the_capital_of_france() -> None:
    runner = loaded_runner("")
    tokenizer = Tokenizer.from_file(read_checkpoint().tokenizer.path)
    prompt = tokenizer.encode("The capital of France is").ids
    assert tokenizer.decode(greedy(runner, Planner(), 3, prompt, 1)) == " Paris"


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"kv_heads": 2, "heads": 8, "head_dim": 32}])
def test_hidden_states_equal_those_of_transformers(tmp_path: Path, options: dict[str, int]) -> None:
    model = write_tiny_model(tmp_path, **options)
    oracle = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    runner = loaded_runner(model)
    seen: list[torch.Tensor] = []
    logits = runner.model.logits
    runner.model.logits = lambda hidden: seen.append(logits(hidden)) or seen[-1]  # type: ignore[method-assign, func-returns-value]
    planner = Planner()
    planner.start(0)
    for chunk in (PROMPT[:7], PROMPT[7:16], PROMPT[16:]):
        run(runner, planner.step(Row(0, chunk)))
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0, [6, 15, 19]]
    torch.testing.assert_close(torch.cat(seen), expected, rtol=1e-4, atol=1e-4)
