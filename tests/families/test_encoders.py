"""Encoders through the whole engine: embeddings equal transformers', each text in one step, in any company."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyllm import LLM, PoolingParams
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError, RequestError
from tests.families.record_gguf import EMBEDDINGS, ENCODERS_IN_GGUF, FOLDER, LENGTHS
from tests.families.test_gguf import write_changed
from tests.families.tiny_encoders import (
    CONTEXT,
    ENCODERS,
    LIKE_OTHERS,
    PUBLISHED,
    expected,
    write_tiny_encoder,
)
from tests.families.tiny_families import PROMPT
from tests.tiers import full

PROMPTS = [
    [2 + (17 * position * position + 5 * position + length) % 254 for position in range(length)]  # none is padding
    for length in (1, 2, 17, CONTEXT, 64, 65, 100, 31)
]
OPTIONS = {"dtype": "float32", "max_num_batched_tokens": CONTEXT + 20, "max_num_seqs": 4}


def vectors(llm: LLM, prompts: list[list[int]]) -> np.ndarray:
    return np.array([output.outputs.embedding for output in llm.embed(prompts)], np.float32)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [("bert", "cls"), *(full(name, "mean") if name in LIKE_OTHERS else (name, "mean") for name in ENCODERS)],
)
def test_embeddings_equal_those_of_transformers_and_depend_on_the_text_alone(
    tmp_path: Path, name: str, pooling: str
) -> None:
    folder = write_tiny_encoder(tmp_path / name, name, pooling)
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        together = vectors(llm, PROMPTS)
        alone = np.concatenate([vectors(llm, [prompt]) for prompt in PROMPTS])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_allclose(together, [expected(name, prompt, pooling) for prompt in PROMPTS], atol=1e-5)


def test_an_encoder_by_itself_may_say_that_it_is_not_causal(tmp_path: Path) -> None:
    folder = Path(write_tiny_encoder(tmp_path / "encoder", "modernbert"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    assert read_checkpoint(str(folder)).spec.is_bidirectional


def test_norms_have_the_names_of_the_first_files(tmp_path: Path) -> None:
    folder = Path(write_tiny_encoder(tmp_path / "encoder", "bert"))
    tensors = load_file(folder / "model.safetensors")
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert older.keys() != tensors.keys()
    before = read_checkpoint(str(folder)).tensors
    save_file(older, folder / "model.safetensors")
    assert [entry.name for entry in read_checkpoint(str(folder)).tensors] == [entry.name for entry in before]


def test_pooling_is_where_the_modules_say(tmp_path: Path) -> None:
    folder = Path(write_tiny_encoder(tmp_path / "encoder", "bert", "cls"))
    (folder / "1_Pooling").rename(folder / "9_Pooling")
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("1_Pooling", "9_Pooling"))
    assert read_checkpoint(str(folder)).embedding.pooling == "cls"


@pytest.mark.parametrize("fields", [{"use_sliding_window": True, "max_window_layers": 1}, {"is_causal": 0}])
def test_windows_of_a_text_model_are_refused_where_it_attends_to_later_tokens(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    folder = write_tiny_encoder(tmp_path / "qwen2", "qwen2-bidirectional")
    path = tmp_path / "qwen2/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_types": None, "sliding_window": 8} | fields))
    with pytest.raises(ConfigError, match="is_causal"):
        read_checkpoint(folder)


def test_gguf_files_may_have_layers_after_pooling(tmp_path: Path) -> None:
    matrices = [np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((48, 32), (16, 48))]
    dense = {f"dense_{index}.weight": matrix for index, matrix in enumerate(matrices, 2)}
    write_changed(FOLDER / "bert.gguf", tmp_path / "dense.gguf", tensors=lambda tensors: tensors | dense)
    with LLM(str(tmp_path / "dense.gguf"), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = vectors(llm, PROMPTS)
        with pytest.raises(RequestError, match="dimensions must be 16 or left out, got 32"):
            llm.embed(PROMPTS, dimensions=32)
    wanted = np.array([matrices[1] @ matrices[0] @ expected("bert", prompt, "mean") for prompt in PROMPTS])
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_that_transformers_does_not_know_give_the_embeddings_of_llama_cpp(tmp_path: Path, name: str) -> None:
    theirs = np.load(EMBEDDINGS)[name]
    for model in (PUBLISHED[name](tmp_path / "model"), str(FOLDER / f"{name}.gguf")):
        with LLM(model, **OPTIONS, max_model_len=CONTEXT, distributed_executor_backend="uni") as llm:
            found = vectors(llm, [PROMPT[:length] for length in LENGTHS])
        np.testing.assert_allclose(found, theirs, atol=5e-4)  # llama.cpp has GELU by its approximation with tanh.


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("bert-dense", "tensor_parallel_size"),
        ("bert-dense", "pipeline_parallel_size"),
        ("mpnet", "tensor_parallel_size"),
        full("mpnet", "pipeline_parallel_size"),
    ],
)
def test_two_ranks_and_two_stages_give_the_same(tmp_path: Path, name: str, split: str) -> None:
    folder = write_tiny_encoder(tmp_path / "model", name)
    with LLM(folder, **OPTIONS, **{split: 2}) as llm:
        found = vectors(llm, PROMPTS)
    np.testing.assert_allclose(found, [expected(name, prompt, "mean") for prompt in PROMPTS], atol=1e-5)


def test_an_encoder_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "bert", "bert")
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        with pytest.raises(RequestError, match="only embeds"):
            llm.generate([PROMPTS[2]])
        with pytest.raises(RequestError, match=str(CONTEXT)):
            llm.embed([[1] * (CONTEXT + 1)])
        with pytest.raises(RequestError, match="embeddings always have length 1"):
            llm.embed([PROMPTS[2]], pooling_params=PoolingParams(use_activation=False))
        assert vectors(llm, PROMPTS[:1]).shape == (1, 32)


def test_texts_are_as_long_as_sentence_transformers_lets_them_be(tmp_path: Path) -> None:
    """Where the user does not say otherwise: all-MiniLM-L6-v2 was trained on 256 tokens, and has 512 positions."""
    folder = write_tiny_encoder(tmp_path / "bert", "bert")
    (tmp_path / "bert/sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": false}')
    for length, settings in ((20, {}), (CONTEXT, {"max_model_len": CONTEXT})):
        with LLM(folder, **OPTIONS | settings, distributed_executor_backend="uni") as llm:
            assert vectors(llm, [[1] * length]).shape == (1, 32)
            with pytest.raises(RequestError, match=str(length)):
                llm.embed([[1] * (length + 1)])


def test_settings_about_prefixes_and_parts_of_texts_are_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A catalogue gives them to all of its models."""
    settings = {
        "max_num_batched_tokens": CONTEXT - 1,
        "long_prefill_token_threshold": 16,
        "max_pinned_blocks": 4,
        "kv_cache_dir": str(tmp_path / "store"),
    }
    folder = write_tiny_encoder(tmp_path / "bert", "bert")
    with LLM(folder, **OPTIONS | settings, distributed_executor_backend="uni") as llm:
        found = vectors(llm, PROMPTS)
    np.testing.assert_allclose(found, [expected("bert", prompt, "mean") for prompt in PROMPTS], atol=1e-5)
    assert any(all(name in record.message for name in settings) for record in caplog.records)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ENCODERS_IN_GGUF)
def test_gguf_files_give_the_embeddings_of_transformers_and_llama_cpp(name: str) -> None:
    with LLM(str(FOLDER / f"{name}.gguf"), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = vectors(llm, [PROMPT[:length] for length in LENGTHS])
    np.testing.assert_allclose(found, [expected(name, PROMPT[:length], "mean") for length in LENGTHS], atol=1e-5)
    # llama.cpp has GELU by its approximation with tanh.
    np.testing.assert_allclose(found, np.load(EMBEDDINGS)[name], atol=5e-4)


def test_an_embedding_smaller_than_the_states_is_refused(tmp_path: Path) -> None:
    folder = Path(write_tiny_encoder(tmp_path / "electra", "electra"))
    config = json.loads((folder / "config.json").read_text())
    for size in (16, None):  # by default 128
        given = {name: value for name, value in (config | {"embedding_size": size}).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(given))
        with pytest.raises(ConfigError, match="embedding_size = "):
            read_checkpoint(str(folder))


def test_older_files_of_jina_bert_have_a_tensor_of_each_half(tmp_path: Path) -> None:
    def split(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        halves = {name: np.split(tensor, 2) for name, tensor in tensors.items() if name.endswith("ffn_up.weight")}
        gates = {name.replace("up", "gate"): gate for name, (gate, _) in halves.items()}
        return tensors | gates | {name: up for name, (_, up) in halves.items()}

    source, path = FOLDER / "jina-bert.gguf", tmp_path / "older.gguf"
    write_changed(source, path, tensors=split)
    found = []
    for model in (source, path):
        with LLM(str(model), **OPTIONS, max_model_len=CONTEXT, distributed_executor_backend="uni") as llm:
            found.append(vectors(llm, PROMPTS))
    np.testing.assert_array_equal(*found)
