"""Sparse attention in a whole engine: the same tokens whatever is preempted, cached, drafted and served beside."""

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyllm import LLM, LLMEngine, SamplingParams
from tests import in_process
from tests.tiers import full
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
    """The tokens that follow prompts that are served together."""
    return in_process.tokens(in_process.generate(engine, prompts, GREEDY))


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


def test_blocks_of_a_store_give_the_bits_of_blocks_that_were_computed(model: str, tmp_path: Path) -> None:
    """In an engine that is started anew, whose blocks have had other contents, and summaries of them."""
    prompt, other = (random.Random(number).choices(range(256), k=120) for number in range(2))
    sparse: dict[str, Any] = OPTIONS | {"sparse_attention": "quest", "num_gpu_blocks_override": 50}
    options = sparse | {"kv_cache_dir": str(tmp_path / "blocks")}
    with in_process.engine(model, **sparse, enable_prefix_caching=False) as engine:
        expected = bits_of(engine, prompt)
    with in_process.engine(model, **options) as engine:
        assert bits_of(engine, prompt) == expected
    with in_process.engine(model, **options) as engine:
        outputs(engine, [other])
        assert bits_of(engine, prompt) == expected
        assert engine.stats()["num_kv_loaded_tokens"] == 116, "all blocks but the last, which is computed"
    dense = {name: value for name, value in options.items() if not name.startswith("sparse")}
    for changed in (dense, options | {"sparse_attention_top_k": 4}):
        with in_process.engine(model, **changed) as engine:
            assert in_process.generate(engine, [prompt], GREEDY)[0].num_cached_tokens == 0, (
                "blocks of other settings mean something else"
            )


@pytest.mark.parametrize(("kind", "ranks", "stages"), [("quest", 2, 1), full("mean", 1, 2)])
def test_ranks_and_stages_give_the_tokens_of_one_process(tmp_path: Path, kind: str, ranks: int, stages: int) -> None:
    """Each rank has its own heads, and chooses by those of all."""
    folder = write_tiny_model(tmp_path / "model", layers=4, heads=4, kv_heads=2)
    prompts = [random.Random(number).choices(range(256), k=30 + 9 * number) for number in range(8)]
    with in_process.engine(folder, **OPTIONS, sparse_attention=kind) as engine:
        expected = outputs(engine, prompts)
    options: dict[str, Any] = OPTIONS | {"sparse_attention": kind, "warm_spares": False}
    with closing(LLM(folder, **options, tensor_parallel_size=ranks, pipeline_parallel_size=stages)) as llm:
        assert in_process.tokens(llm.generate(prompts, GREEDY)) == expected


def bits_of(engine: LLMEngine, prompt: list[int]) -> list[Any]:
    """Tokens and log-probabilities of an answer."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2)
    (sample,) = in_process.generate(engine, [prompt], params)[0].outputs
    return [sample.token_ids, sample.logprobs]
