"""Every family against transformers: float32 logits, however a sequence comes, and bitwise the same each time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pyllm_kernels.tensors import Array
from transformers import PreTrainedModel

from pyllm.workers.model_runner import ModelRunner
from tests.families.tiny_families import FAMILIES, LONG_CONTEXTS, PROMPT, oracle, write_tiny_family
from tests.plans import Planner, Row
from tests.workers.engine import loaded_runner

OTHER = [(53 * position + 7) % 256 for position in range(70)]


class Sequences:
    """The logits of every token that a runner computes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        slots = runner._slots
        num_groups = len(slots.tables_of_groups())
        max_num_seqs = len(slots.last_tokens)
        self.planner = Planner(num_blocks=256, num_groups=num_groups, max_num_seqs=max_num_seqs)

    def start(self, *slots: int) -> None:
        for slot in slots:
            self.planner.start(slot)

    def logits(self, *rows: Row) -> dict[int, Array]:
        """Of each row's slot, [tokens, vocab_size]."""
        step, frame = self.planner.step(*rows)
        batch = self._runner._plans.load(step.counts, frame)
        self._runner._slots.apply(batch)
        if (adapters := self._runner._weights.adapters) is not None:
            adapters.apply(batch)
        hidden = self._runner.forward(batch).copy()
        parts, start = {}, 0
        for row in rows:
            logits = [
                self._runner.logits(hidden, np.array([start + index], np.int32)).copy()
                for index in range(len(row.tokens))
            ]
            parts[row.slot], start = np.concatenate(logits), start + len(row.tokens)
        return parts


@torch.inference_mode()
def expected_logits(model: PreTrainedModel) -> Array:
    """The logits of the prompt in transformers, [tokens, vocab_size]."""
    logits: Array = model(torch.tensor([PROMPT])).logits[0].numpy()
    return logits


@pytest.fixture(scope="module", params=[*FAMILIES, *LONG_CONTEXTS])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(family: str, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = write_tiny_family(tmp_path_factory.mktemp("family"), family)
    return loaded_runner(folder, num_blocks=256, max_model_len=128)


@pytest.fixture(scope="module")
def whole(runner: ModelRunner) -> Array:
    """The logits of the prompt, computed alone and at once."""
    sequences = Sequences(runner)
    sequences.start(0)
    return sequences.logits(Row(0, PROMPT))[0]


def test_logits_equal_those_of_transformers(family: str, whole: Array) -> None:
    expected = expected_logits(oracle(family))
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-4)
    # The test can fail: the logits depend on the order of the tokens, and differ clearly.
    assert np.abs(expected[-1] - expected[-2]).max() > 0.1


def test_they_are_bitwise_the_same_in_chunks_beside_others(runner: ModelRunner, whole: Array) -> None:
    sequences = Sequences(runner)
    sequences.start(0, 1)
    chunks = [
        sequences.logits(Row(0, PROMPT[:1]))[0],
        sequences.logits(Row(0, PROMPT[1:40]), Row(1, OTHER[:3]))[0],
        sequences.logits(Row(1, OTHER[3:40]), Row(0, PROMPT[40:41]))[0],
        sequences.logits(Row(0, PROMPT[41:89]))[0],
        sequences.logits(Row(1, OTHER[40:]), Row(0, PROMPT[89:]))[0],
    ]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "family",
    [
        *("lfm2", "qwen3-next", "granite-4-mamba", "nemotron-h", "falcon-h1", "jamba", "mamba", "kimi-linear"),
        *("minimax-01", "ring-linear", "ling-3", "olmo-hybrid"),
    ],
)
def test_states_do_not_drift_over_4000_tokens(tmp_path: Path, family: str) -> None:
    prompt = np.random.default_rng(0).integers(0, 256, 4000).tolist()
    sequences = Sequences(loaded_runner(write_tiny_family(tmp_path, family), num_blocks=256, max_model_len=4096))
    sequences.start(0)
    chunks = [sequences.logits(Row(0, prompt[start : start + 64]))[0] for start in range(0, 4000, 64)]
    with torch.inference_mode():
        expected = oracle(family)(torch.tensor([prompt])).logits[0].numpy()
    differences = np.abs(np.concatenate(chunks) - expected).max(1)
    assert differences.max() < 1e-3  # some tokens have sums near zero before a norm
    assert np.median(differences[-500:]) < 2 * np.median(differences[:500]) < 4e-5
