"""Encoders through the whole engine: embeddings equal transformers', each text in one step, in any company."""

from pathlib import Path

import numpy as np
import pytest

from pyllm import LLM
from pyllm.errors import ConfigError, RequestError
from tests.families.record_gguf import EMBEDDINGS, ENCODERS_IN_GGUF, FOLDER, LENGTHS
from tests.families.tiny_encoders import CONTEXT, ENCODERS, expected, write_tiny_encoder
from tests.families.tiny_families import PROMPT

PROMPTS = [
    [2 + (17 * position * position + 5 * position + length) % 254 for position in range(length)]  # none is padding
    for length in (1, 2, 17, CONTEXT, 64, 65, 100, 31)
]
OPTIONS = {"dtype": "float32", "max_num_batched_tokens": CONTEXT + 20, "max_num_seqs": 4}


def vectors(llm: LLM, prompts: list[list[int]]) -> np.ndarray:
    return np.array([output.outputs.embedding for output in llm.embed(prompts)], np.float32)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings_equal_those_of_transformers_and_depend_on_the_text_alone(
    tmp_path: Path, name: str, pooling: str
) -> None:
    folder = write_tiny_encoder(tmp_path / name, name, pooling)
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        together = vectors(llm, PROMPTS)
        alone = np.concatenate([vectors(llm, [prompt]) for prompt in PROMPTS])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_allclose(together, [expected(name, prompt, pooling) for prompt in PROMPTS], atol=1e-5)


@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_two_ranks_and_two_stages_give_the_same(tmp_path: Path, split: str) -> None:
    folder = write_tiny_encoder(tmp_path / "bert", "bert")
    with LLM(folder, **OPTIONS, **{split: 2}) as llm:
        found = vectors(llm, PROMPTS)
    np.testing.assert_allclose(found, [expected("bert", prompt, "mean") for prompt in PROMPTS], atol=1e-5)


def test_an_encoder_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "bert", "bert")
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        with pytest.raises(RequestError, match="only embeds"):
            llm.generate([PROMPTS[2]])
        with pytest.raises(RequestError, match=str(CONTEXT)):
            llm.embed([[1] * (CONTEXT + 1)])
        assert vectors(llm, PROMPTS[:1]).shape == (1, 32)
    for setting in (
        {"max_num_batched_tokens": CONTEXT - 1},
        {"long_prefill_token_threshold": 16},
        {"max_pinned_blocks": 4},
        {"kv_cache_dir": str(tmp_path / "store")},
    ):
        with pytest.raises(ConfigError, match=f"BertModel is an encoder, and .*{next(iter(setting))}"):
            LLM(folder, **OPTIONS | setting)


@pytest.mark.parametrize("name", ENCODERS_IN_GGUF)
def test_gguf_files_give_the_embeddings_of_transformers_and_llama_cpp(name: str) -> None:
    with LLM(str(FOLDER / f"{name}.gguf"), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = vectors(llm, [PROMPT[:length] for length in LENGTHS])
    np.testing.assert_allclose(found, [expected(name, PROMPT[:length], "mean") for length in LENGTHS], atol=1e-5)
    # llama.cpp has GELU by its approximation with tanh.
    np.testing.assert_allclose(found, np.load(EMBEDDINGS)[name], atol=5e-4)
