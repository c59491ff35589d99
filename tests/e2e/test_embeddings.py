"""Embeddings of the embedded model: those of transformers in float32, and the same bits in any company."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from transformers import AutoModel

from pyllm import LLM, AsyncEngine, SamplingParams
from pyllm.checkpoint import read_checkpoint
from tests.e2e.server import Server
from tests.e2e.stretches import stretches

Tokens = list[int]
Vectors = list[list[float]]


def prompts() -> list[Tokens]:
    """5 to 200 tokens, of which some begin alike."""
    short = [stretch[:200] for stretch in stretches()[:14:2]]
    return [*short, short[-1][:90], stretches()[9][:70], stretches()[9][:80]]


def embed(inputs: list[Tokens], *, together: bool, **options: Any) -> tuple[Vectors, int]:
    """The vectors, and how many tokens the prefix cache had; together they run beside as many generations."""

    async def run() -> tuple[Vectors, int]:
        async with AsyncEngine(**options) as engine:
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            if together:
                others = [engine.complete(prompt[:40], params) for prompt in inputs[::3]]
                outputs, _ = await asyncio.gather(
                    asyncio.gather(*(engine.embed(prompt) for prompt in inputs)), asyncio.gather(*others)
                )
            else:
                outputs = [await engine.embed(prompt) for prompt in inputs]
            vectors = [output.outputs.embedding for output in outputs]
            return vectors, sum(output.num_cached_tokens for output in outputs)

    return asyncio.run(run())


ALONE: dict[str, Any] = {"together": False, "enable_prefix_caching": False, "async_scheduling": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "together, in small chunks": {"together": True, "max_num_batched_tokens": 48, "enable_prefix_caching": False},
    "together, cached": {"together": True},
    "one by one, cached": {"together": False, "async_scheduling": False},
}


@pytest.mark.timeout(300)
def test_vectors_equal_the_oracle_and_depend_on_the_prompt_alone() -> None:
    path = Path(read_checkpoint("").files[0])
    oracle = AutoModel.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    alone, cached = embed(prompts(), dtype="float32", **ALONE)
    assert cached == 0
    for prompt, vector in zip(prompts(), alone, strict=True):
        with torch.inference_mode():
            expected = oracle(torch.tensor([prompt])).last_hidden_state[0, -1].double()
        expected = (expected / expected.norm()).numpy()
        assert float(np.array(vector) @ expected) > 1 - 1e-6
        assert np.abs(np.array(vector) - expected).max() < 1e-4
    chunked = SETTINGS["together, in small chunks"]
    assert embed(prompts(), dtype="float32", **chunked) == (alone, 0)


@pytest.mark.timeout(300)
def test_vectors_of_the_default_precision_depend_on_the_prompt_alone() -> None:
    alone, _ = embed(prompts(), **ALONE)
    for name, setting in SETTINGS.items():
        vectors, cached = embed(prompts(), **setting)
        assert vectors == alone, name
        assert (cached > 0) == setting.get("enable_prefix_caching", True)


@pytest.mark.oracle
@pytest.mark.timeout(300)
def test_three_ranks_give_nearly_the_vectors_of_one() -> None:
    with LLM(dtype="float32", tensor_parallel_size=3) as llm:
        three = [output.outputs.embedding for output in llm.embed(prompts())]
        again = [output.outputs.embedding for output in llm.embed(prompts())]
    assert three == again  # with other prefixes in the cache
    one, _ = embed(prompts(), dtype="float32", **ALONE)
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
