"""Every family by Triton's kernels, in its interpreter: mixed steps and decodes give the tokens of transformers.

Some of it is in `make test`; `make oracle` has every family.
"""

from pathlib import Path

import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.config.option_reading import engine_config
from pyllm.errors import ConfigError
from pyllm.families.kv_layout import kv_groups
from pyllm.launch.resolve import resolve_settings
from pyllm.workers.model_limits import is_for_cpus_alone
from tests.families.test_engine import prompts_and_answers
from tests.families.tiny_families import FAMILIES, write_tiny_family
from tests.plans import Planner, Row
from tests.workers.engine import loaded_runner, run

# Windows, soft caps, rotations of pairs, layer norms, layers without positions; convolutions;
# latents.
IN_EVERY_RUN = {"gemma2", "cohere2", "lfm2", "deepseek-v3"}
CHUNK, NUM_TOKENS = 17, 3
LENGTH = 128  # by which RoPE is scaled as for the sequences of the oracle


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in IN_EVERY_RUN else pytest.mark.oracle) for name in sorted(FAMILIES)],
)
def test_tokens_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """A prompt comes in chunks while another sequence decodes. Some recurrences are refused: Triton has no ops."""
    model = write_tiny_family(tmp_path, family)
    if any(map(is_for_cpus_alone, read_checkpoint(model).spec.layers)):
        with pytest.raises(ConfigError, match="triton"):
            resolve_settings(engine_config({"model": model, "device": "cpu", "kernel_backend": "triton"}))
        return
    runner = loaded_runner(model, num_blocks=128, kernel_backend="triton", max_model_len=LENGTH)
    groups = len(kv_groups(runner._spec, LENGTH, hybrid=True))
    planner = Planner(128, num_groups=groups, max_num_seqs=8)
    (first, first_answer), (second, second_answer) = prompts_and_answers(family)[2:4]
    planner.start(0)
    found = [run(runner, planner.step(Row(0, first))), []]
    planner.start(1)
    chunks = [second[start : start + CHUNK] for start in range(0, len(second), CHUNK)]
    for chunk in chunks:
        tokens = run(runner, planner.step(Row(0, [-1]), Row(1, chunk)))
        found[0].append(tokens[0])
    found[1].append(tokens[1])
    while len(found[1]) < NUM_TOKENS:
        tokens = run(runner, planner.step(Row(0, [-1]), Row(1, [-1])))
        for answer, token in zip(found, tokens, strict=True):
            answer.append(token)
    assert found[0] == first_answer[: len(found[0])]
    assert found[1] == second_answer[:NUM_TOKENS]
