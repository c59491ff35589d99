"""Sparse attention in a whole engine: the same tokens whatever is preempted, cached, drafted and served beside."""

import random
from pathlib import Path

import pytest

from pyllm import LLMEngine, SamplingParams
from tests.tiny_model import write_tiny_model

OPTIONS = {
    "device": "cpu",
    "dtype": "float32",
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "sparse_attention_top_k": 3,
    "sparse_attention_recent_blocks": 1,
    "sparse_attention_dense_layers": 1,
}
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("sparse")
    return write_tiny_model(folder / "model", layers=3)


def outputs(engine: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens of prompts that are served together."""
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, GREEDY)
    found: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[output.request_id] = list(output.outputs[0].token_ids)
    return [found[str(number)] for number in range(len(prompts))]


def test_a_request_has_the_tokens_that_it_has_alone(model: str) -> None:
    prompts = [random.Random(number).choices(range(256), k=20 + 9 * number) for number in range(4)]
    roomy = LLMEngine(model, **OPTIONS, sparse_attention="quest", enable_prefix_caching=False)
    alone = [outputs(roomy, [prompt])[0] for prompt in prompts]
    dense = LLMEngine(model, **{name: value for name, value in OPTIONS.items() if not name.startswith("sparse")})
    assert alone != outputs(dense, prompts)
    crowded = LLMEngine(model, **OPTIONS, sparse_attention="quest", num_gpu_blocks_override=40, expected_growth=0)
    assert outputs(crowded, prompts) == alone
    assert crowded.stats()["num_preemptions"] > 0
    # The next turn of each conversation: the output is a prompt now, and its blocks were computed as an output.
    turns = [prompt + output + [7, 8, 9] for prompt, output in zip(prompts, alone, strict=True)]
    expected = [outputs(roomy, [turn])[0] for turn in turns]
    cached = LLMEngine(model, **OPTIONS, sparse_attention="quest")
    assert outputs(cached, prompts) == alone
    hits = cached.stats()["prefix_hits"]
    assert outputs(cached, turns) == expected
    assert cached.stats()["prefix_hits"] - hits == sum(len(prompt) // 4 * 4 for prompt in prompts)
    assert outputs(cached, prompts) == alone
    for engine in (roomy, dense, crowded, cached):
        engine.close()
