"""Embeddings of the embedded model: those of transformers in float32, and the same bits in any company."""

import asyncio
from pathlib import Path

import numpy as np
import openai
import pytest

from pyllm import LLM, AsyncEngine, SamplingParams
from tests.e2e.server import Server
from tests.e2e.stretches import stretches
from tests.in_process import KV_CACHE
from tests.tiny_model import write_tiny_model

Tokens = list[int]
Vectors = list[list[float]]


def prompts() -> list[Tokens]:
    """5 to 150 tokens, of which some begin alike."""
    long = stretches()[11]
    return [*(stretch[:100] for stretch in stretches()[:9:2]), long, long[:90], long[:33]]


async def alone(engine: AsyncEngine) -> Vectors:
    """The vectors, one after the other, without a prefix cache."""
    vectors = []
    for prompt in prompts():
        await engine.reset_prefix_cache()
        output = await engine.embed(prompt)
        assert output.num_cached_tokens == 0
        vectors.append(output.outputs.embedding)
    return vectors


async def together(engine: AsyncEngine) -> tuple[Vectors, int]:
    """The vectors, beside some requests that generate, and how many tokens of them were cached."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    others = [engine.complete(prompt[:40], params) for prompt in prompts()[::3]]
    embeddings = asyncio.gather(*(engine.embed(prompt) for prompt in prompts()))
    outputs, _ = await asyncio.gather(embeddings, asyncio.gather(*others))
    return [output.outputs.embedding for output in outputs], sum(output.num_cached_tokens for output in outputs)


async def in_company(engine: AsyncEngine) -> list[Vectors]:
    """The vectors in small chunks, and then cached."""
    await engine.reconfigure(max_num_batched_tokens=48)
    await engine.reset_prefix_cache()
    chunked, _ = await together(engine)
    await engine.reconfigure(max_num_batched_tokens=192)
    cached, num_cached = await together(engine)
    assert num_cached > sum(map(len, prompts())) // 2
    return [chunked, cached]


@pytest.mark.torch
async def test_vectors_equal_the_oracle_and_depend_on_the_prompt_alone() -> None:
    import torch

    from tests.e2e.embedded_oracle import embedded_oracle

    oracle = embedded_oracle().model
    async with AsyncEngine(dtype="float32", async_scheduling=False, kv_cache_memory_bytes=KV_CACHE) as engine:
        vectors = await alone(engine)
        assert await in_company(engine) == [vectors] * 2
    for prompt, vector in zip(prompts(), vectors, strict=True):
        with torch.inference_mode():
            expected = oracle(torch.tensor([prompt])).last_hidden_state[0, -1].double()
        expected = (expected / expected.norm()).numpy()
        assert float(np.array(vector) @ expected) > 1 - 1e-6
        assert np.abs(np.array(vector) - expected).max() < 1e-4


@pytest.mark.full
async def test_vectors_of_the_default_precision_depend_on_the_prompt_alone() -> None:
    async with AsyncEngine(kv_cache_memory_bytes=KV_CACHE) as engine:  # which plans a step ahead
        vectors = await alone(engine)
        assert await in_company(engine) == [vectors] * 2


@pytest.mark.oracle
def test_three_ranks_give_nearly_the_vectors_of_one() -> None:
    with LLM(dtype="float32", tensor_parallel_size=3) as llm:
        three = [output.outputs.embedding for output in llm.embed(prompts())]
        again = [output.outputs.embedding for output in llm.embed(prompts())]
    assert three == again  # with other prefixes in the cache
    with LLM(dtype="float32") as llm:
        one = [output.outputs.embedding for output in llm.embed(prompts())]
    assert np.abs(np.array(three) - np.array(one)).max() < 1e-4


def test_openais_library_asks_a_server(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "Interest rates rose again."]
        vectors = np.array([each.embedding for each in client.embeddings.create(model=model, input=texts).data])
        numbers = client.embeddings.create(model=model, input=texts[0], encoding_format="float").data[0].embedding
        assert np.array_equal(vectors[0], np.array(numbers, np.float32))
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0] * 3, abs=1e-5)
        assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token"])
def test_the_mean_and_the_first_token_though_prompts_begin_alike_and_are_preempted(tmp_path: Path, mode: str) -> None:
    import torch
    from transformers import AutoModel

    folder = Path(write_tiny_model(tmp_path / "tiny"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(f'{{"pooling_mode_{mode}": true}}')
    oracle = AutoModel.from_pretrained(folder, dtype=torch.float32)
    prompts = [[(3 * position) % 250 for position in range(length)] for length in (5, 150, 120, 140, 31)]
    options = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 17, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    with LLM(str(folder), **options, kv_offloading_size="16MiB") as llm:
        outputs = llm.embed([*prompts, *prompts])
    assert [output.num_cached_tokens for output in outputs] == [0] * len(outputs)
    for prompt, output in zip([*prompts, *prompts], outputs, strict=True):
        with torch.inference_mode():
            states = oracle(torch.tensor([prompt])).last_hidden_state[0].double()
        expected = states.mean(dim=0) if mode == "mean_tokens" else states[0]
        expected = (expected / expected.norm()).numpy()
        assert np.abs(np.array(output.outputs.embedding) - expected).max() < 1e-5
