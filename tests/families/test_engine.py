"""Every family through the whole engine: greedy tokens equal transformers', whatever happens to the sequences.

Some of it is in `make test`, more in `make full`; `make oracle` has every family on one rank and on two.
"""

import functools
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pyllm import LLM, AsyncEngine, SamplingParams
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.families.kv_layout import kv_groups, plane_heads, planes_of_block
from pyllm.families.stage_layout import split_into_stages
from pyllm.families.state_layout import state_bytes
from tests.e2e.titles import WORKER, find
from tests.families.tiny_families import FAMILIES, oracle, write_tiny_family
from tests.tiers import full
from tests.tiny_gguf import write_gpt_oss_gguf

NEW_TOKENS = 24
# Nearer than this the order of float32 additions may decide, which no two implementations share.
MARGIN = 0.002
# With its cache, transformers' Bamba generates other tokens than without, as does MiniMax-01 (its positions are counted
# by the first layer, which has no keys), and models without attention have no cache of that name; the reference of
# lightning attention has none: each token is found from the whole sequence.
WITHOUT_CACHE = {
    *("minimax-01", "minimax-01-factors", "ring-linear", "ling-2.5"),
    *("bamba", "bamba-bias", "mamba", "mamba-bias", "mamba2", "mamba2-bias"),
    *("falcon-mamba", "falcon-mamba-bias"),
}
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
Tokens = list[int]


@functools.cache
def prompts_and_answers(family: str) -> list[tuple[Tokens, Tokens]]:
    """Six prompts of 20 to 80 tokens whose answers are clear, two of them with a common beginning."""
    found: list[tuple[Tokens, Tokens]] = []
    common = [(29 * position * position + 3) % 256 for position in range(48)]
    for seed in range(40):
        length = 20 + 10 * (len(found) % 3)
        own = [(seed * 97 + 41 * position * position + 7 * position) % 256 for position in range(length)]
        prompt = common + own if len(found) < 2 else own
        tokens, margin = greedy(family, prompt)
        if margin >= MARGIN:
            found.append((prompt, tokens))
        if len(found) == 6:
            return found
    raise AssertionError(f"{family}: only {len(found)} prompts with clear answers")


@torch.inference_mode()
def greedy(family: str, prompt: Tokens) -> tuple[Tokens, float]:
    """What transformers generates, and the smallest distance between two best logits."""
    inputs, cache, tokens, margin = torch.tensor([prompt]), None, [], float("inf")
    for _ in range(NEW_TOKENS):
        result = oracle(family)(inputs, past_key_values=cache, use_cache=True)
        cache = None if family in WITHOUT_CACHE else result.past_key_values
        best = result.logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        token = best.indices[:1][None]
        inputs = token if cache is not None else torch.cat([inputs, token], 1)
        tokens.append(int(token))
    return tokens, margin


def check(
    folder: str, family: str, ranks: int, kv_offloading_size: str | int = 0, stages: int = 1, **options: Any
) -> None:
    """In small chunks, with cached prefixes, and with so few blocks that sequences are preempted."""
    cases = prompts_and_answers(family)
    checkpoint = read_checkpoint(folder)
    spec, tied = checkpoint.spec, checkpoint.spec.tie_word_embeddings
    # As many blocks as one stage has.
    groups = kv_groups(spec, 128, ranks=ranks)
    split = split_into_stages(checkpoint.tensors, len(spec.layers), stages, tied, spec.tied_layers)
    of_stage = max(planes_of_block(stage.groups(groups)) for stage in split)
    of_block, num_planes = max(1, planes_of_block(groups)), max(1, sum(group.num_planes for group in groups))
    layers = len(spec.layers) * of_stage // of_block
    block_bytes = spec.attention.cached_vectors * math.prod(plane_heads(spec, ranks)) * layers * 4 * 16
    with LLM(
        folder,
        dtype="float32",
        max_model_len=128,
        max_num_batched_tokens=32,
        kv_cache_memory_bytes=8 * block_bytes + 40 * state_bytes(spec, ranks, range(len(spec.layers))),
        num_gpu_blocks_override=8 * num_planes // of_block,
        expected_growth=0.0,
        tensor_parallel_size=ranks,
        pipeline_parallel_size=stages,
        kv_offloading_size=kv_offloading_size,
        **options,
    ) as llm:
        together = llm.generate([prompt for prompt, _ in cases], GREEDY)
        again = [llm.generate([cases[0][0]], GREEDY)[0] for _ in range(3)]
        stats = llm.stats()
    assert [output.outputs[0].token_ids for output in together] == [tokens for _, tokens in cases]
    assert [output.outputs[0].token_ids for output in again] == [cases[0][1]] * 3
    assert again[-1].num_cached_tokens > 0
    assert stats["num_preemptions"] > 0
    assert (stats["num_swapped"] > 0) == bool(kv_offloading_size)


# The last ones have query, key and value in one tensor, learned positions, biases and two norms of parallel layers.
TWO_RANKS = [
    *(
        "lfm2",
        full("qwen3-next"),
        "kimi-linear",
        full("lfm3"),
        full("granite-4-mamba"),
        "jamba",
        "mamba2",
        full("falcon-mamba"),
        "minimax-01",
        full("ring-linear"),
        full("ling-3"),
        full("olmo-hybrid"),
        full("laguna"),
        "mimo-v2",
        "glm-5",
        full("deepseek-v3.2"),
        full("nemotron-super"),
        full("step-3.5"),
    ),
    *(
        "gemma3n",
        full("gemma3n-three-streams"),
        "gemma4",
        full("gemma4-one-kv-head"),
        full("gemma4-large"),
        full("gemma4-experts"),
    ),
    *(full("gemma3"), "olmo2-one-kv-head", full("glm4"), full("mixtral"), "gpt-oss"),
    *(full("gpt-bigcode"), full("falcon-40b"), full("phi"), full("deepseek-v3"), "bloom", full("mpt")),
]


@pytest.mark.parametrize("family", TWO_RANKS)
def test_two_ranks(tmp_path: Path, family: str) -> None:
    check(write_tiny_family(tmp_path, family), family, ranks=2)


@pytest.mark.parametrize(
    "family", ["gemma3n", full("gemma4"), "gpt-oss", full("cohere2"), full("gpt2"), full("youtu"), full("glm-5")]
)
def test_two_stages(tmp_path: Path, family: str) -> None:
    check(write_tiny_family(tmp_path, family), family, ranks=1, stages=2, kv_offloading_size="8MiB")


@pytest.mark.parametrize(
    "family",
    [
        *(full("lfm2"), "qwen3-next", full("kimi-linear-dense"), full("lfm3"), full("nemotron-h"), full("jamba")),
        *("mamba", "minimax-01-factors", full("ling-3")),
    ],
)
def test_states_in_two_stages(tmp_path: Path, family: str) -> None:
    check(write_tiny_family(tmp_path, family), family, ranks=1, stages=2, kv_offloading_size="8MiB")


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        *(("lfm2", 1), full("qwen3-next", 1), ("qwen3.5", 2), full("falcon-h1", 1)),
        *(("mamba", 1), full("kimi-linear", 2), full("lfm3", 1), full("ring-linear", 1), full("olmo-hybrid", 2)),
    ],
)
def test_states_that_are_swapped_out_and_in(tmp_path: Path, family: str, ranks: int) -> None:
    check(write_tiny_family(tmp_path, family), family, ranks, kv_offloading_size="8MiB")


@pytest.mark.parametrize("family", ["gemma4-large", "cohere2", full("mistral")])
def test_windows_that_are_swapped_out_and_in(tmp_path: Path, family: str) -> None:
    check(write_tiny_family(tmp_path, family), family, ranks=1, kv_offloading_size="8MiB")


@pytest.mark.parametrize(
    "family", [full("qwen3-moe"), full("glm4-moe"), full("llama4"), full("gemma4-experts"), "gpt-oss-clamped"]
)
def test_experts_whole_on_two_ranks(tmp_path: Path, family: str) -> None:
    check(write_tiny_family(tmp_path, family), family, ranks=2, enable_expert_parallel=True)


@pytest.mark.parametrize("ranks", [full(1), 2])
def test_merged_experts_of_a_gguf_file(tmp_path: Path, ranks: int) -> None:
    source = write_tiny_family(tmp_path / "tiny", "gpt-oss")
    check(write_gpt_oss_gguf(source, tmp_path / "tiny.gguf"), "gpt-oss", ranks)


@pytest.mark.parametrize("family", ["gemma2", full("gemma4"), "qwen3.5", "mamba2", full("kimi-linear"), full("glm-5")])
async def test_a_killed_worker(tmp_path: Path, family: str) -> None:
    prompt, expected = prompts_and_answers(family)[0]
    folder = write_tiny_family(tmp_path, family)
    async with AsyncEngine(folder, dtype="float32", max_model_len=128, kv_cache_memory_bytes="8MiB") as engine:
        tokens: Tokens = []
        async for output in engine.generate(prompt, GREEDY):
            if not tokens:
                for worker in find(os.getpid(), WORKER):
                    worker.kill()
            tokens = output.outputs[0].token_ids
    assert tokens == expected


@pytest.mark.parametrize(("family", "stages"), [("qwen3.5", 1), full("qwen3.5", 2), ("mamba", 1)])
async def test_states_on_the_host_outlive_a_worker(tmp_path: Path, family: str, stages: int) -> None:
    folder = write_tiny_family(tmp_path, family)
    spec = read_checkpoint(folder).spec
    prompts = [[(7 * number + position) % 90 + 3 for position in range(40)] for number in range(4)]
    async with AsyncEngine(
        folder,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=1,
        kv_cache_memory_bytes=6 * state_bytes(spec, 1, range(len(spec.layers))) + (1 << 20),
        num_gpu_blocks_override=5,
        pipeline_parallel_size=stages,
        kv_offloading_size="8MiB",
    ) as engine:

        async def ask() -> tuple[list[Tokens], int]:
            tokens, num_cached = [], 0
            for prompt in prompts:
                async for output in engine.generate(prompt, GREEDY):
                    last = output
                tokens.append(last.outputs[0].token_ids)
                num_cached += last.num_cached_tokens or 0
            return tokens, num_cached

        first, twin = await ask(), await ask()
        assert (first[1], twin[0]) == (0, first[0])
        assert twin[1] == 4 * 32, "each from its checkpoint on the host"
        for worker in find(os.getpid(), WORKER):
            worker.kill()
        assert await ask() == twin
        stats = await engine.stats()
    assert stats["host_prefix_hits"] > 0
    assert stats["num_recoveries"] > 0


@pytest.mark.parametrize("family", ["mamba", full("mamba2")])
def test_drafts_change_nothing_in_states(tmp_path: Path, family: str) -> None:
    folder, prompts = write_tiny_family(tmp_path, family), [[first, 7] * 30 for first in range(1, 100, 13)]
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    found, stats = [], {}
    for num_drafts in (0, 3):
        with LLM(folder, dtype="float32", kv_cache_memory_bytes="8MiB", num_speculative_tokens=num_drafts) as llm:
            found.append([llm.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts])
            stats = llm.stats()
    assert found[0] == found[1]
    assert 0 < stats["num_accepted_drafts"] < stats["num_drafts"]


@pytest.mark.parametrize(("family", "ranks"), [("lfm2", 1), ("qwen3.5", 2), full("falcon-h1", 1)])
def test_states_in_a_store_serve_the_next_engine(tmp_path: Path, family: str, ranks: int) -> None:
    folder, store = write_tiny_family(tmp_path / "model", family), tmp_path / "store"
    prompt = [(7 * position) % 90 + 3 for position in range(70)]
    found = []
    for _ in range(2):
        options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": "8MiB"}
        with LLM(folder, **options, tensor_parallel_size=ranks, kv_cache_dir=str(store)) as llm:
            output = llm.generate([prompt], GREEDY)[0]
            again = llm.generate([[*prompt, *output.outputs[0].token_ids, 5]], GREEDY)[0]
        found.append((output.num_cached_tokens, output.outputs[0].token_ids, again.outputs[0].token_ids))
    assert found[0][1:] == found[1][1:]
    assert (found[0][0], found[1][0]) == (0, 64)


@pytest.mark.oracle
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_matrix(tmp_path: Path, family: str, ranks: int) -> None:
    check(write_tiny_family(tmp_path, family), family, ranks)
