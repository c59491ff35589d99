"""Classifiers through the whole engine: scores equal those of transformers and of llama.cpp, in any company."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyllm import LLM
from pyllm.checkpoint.pooling.embedding_config import EmbeddingSpec
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.scoring.scores import class_scores
from tests.families.record_gguf import CLASSIFIERS_IN_GGUF, EMBEDDINGS, FOLDER, LENGTHS
from tests.families.test_encoders import OPTIONS, PROMPTS
from tests.families.test_gguf import write_changed
from tests.families.tiny_classifiers import CLASSIFIERS, RERANKER, expected, write_tiny_classifier
from tests.families.tiny_encoders import write_tiny_encoder
from tests.families.tiny_families import PROMPT

SEPARATOR = 257


def scores(llm: LLM, prompts: list[list[int]]) -> np.ndarray:
    return np.array([output.outputs.probs for output in llm.classify(prompts)])


def activated(numbers: np.ndarray) -> list[float]:
    return class_scores(numbers.tolist(), "sigmoid" if len(numbers) == 1 else "softmax")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores_equal_those_of_transformers_and_depend_on_the_text_alone(tmp_path: Path, name: str) -> None:
    folder = write_tiny_classifier(tmp_path / name, name)
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        together = scores(llm, PROMPTS)
        alone = np.concatenate([scores(llm, [prompt]) for prompt in PROMPTS])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_allclose(together, [activated(expected(name, prompt)) for prompt in PROMPTS], atol=1e-5)


@pytest.mark.parametrize("options", [{"distributed_executor_backend": "uni"}, {"tensor_parallel_size": 2}])
def test_bert_tells_the_texts_of_a_pair_apart(tmp_path: Path, options: dict[str, Any]) -> None:
    """Also where a text has separators of its own: all after the first one is the second text."""
    pairs = [[*first, SEPARATOR, *second, SEPARATOR] for first in PROMPTS[:3] for second in (PROMPTS[1], PROMPTS[4])]
    pairs += [[SEPARATOR, 5, SEPARATOR, 7], PROMPTS[2]]
    folder = write_tiny_classifier(tmp_path / "bert", "bert-classifier")
    with LLM(folder, **OPTIONS, **options) as llm:
        found = scores(llm, pairs)
    wanted = [activated(expected("bert-classifier", pair, SEPARATOR)) for pair in pairs]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    apart = np.array([activated(expected("bert-classifier", pair)) for pair in pairs])
    assert np.abs(apart[:-1] - wanted[:-1]).min() > 1e-3


@pytest.mark.parametrize("name", CLASSIFIERS_IN_GGUF)
def test_gguf_files_give_the_scores_of_llama_cpp(name: str) -> None:
    with LLM(str(FOLDER / f"{name}.gguf"), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = scores(llm, [PROMPT[:length] for length in LENGTHS])
    theirs = np.load(EMBEDDINGS)[name]
    # llama.cpp has the softmax of Qwen 3 in the model, and GELU by its approximation with tanh.
    wanted = theirs if name == RERANKER else np.array([activated(numbers) for numbers in theirs])
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    if name != "bert-classifier":  # Its converter drops the first layer of BERT's head.
        own = [activated(expected(name, PROMPT[:length])) for length in LENGTHS]
        np.testing.assert_allclose(found, own, atol=1e-5)


def test_qwen3_reranker_is_known_by_its_name(tmp_path: Path) -> None:
    folder = Path(write_tiny_classifier(tmp_path / "Qwen3-Reranker-0.6B", RERANKER))
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.embedding.labels == ("no", "yes")  # in the order of the tokens
    theirs = read_checkpoint(str(FOLDER / f"{RERANKER}.gguf"))
    assert checkpoint.tokenizer.pair_template == theirs.tokenizer.pair_template
    with LLM(str(folder), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = scores(llm, PROMPTS)
    wanted = np.array([activated(expected(RERANKER, prompt)) for prompt in PROMPTS])
    np.testing.assert_allclose(found[:, ::-1], wanted, atol=1e-5)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    entries = {entry.name: entry.source.name for entry in read_checkpoint(str(folder)).tensors}
    assert entries["dense.0.weight"] == "lm_head.weight"
    folder.rename(tmp_path / "other")
    assert read_checkpoint(str(tmp_path / "other")).embedding == EmbeddingSpec()


def test_llama_cpps_quantiser_makes_a_vector_of_one_class(tmp_path: Path) -> None:
    def flat(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors | {"cls.output.weight": tensors["cls.output.weight"].reshape(-1)}

    name = "xlm-roberta-classifier"
    write_changed(FOLDER / f"{name}.gguf", tmp_path / "flat.gguf", tensors=flat)
    with LLM(str(tmp_path / "flat.gguf"), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = scores(llm, [PROMPT[:length] for length in LENGTHS])
    np.testing.assert_allclose(found, [activated(expected(name, PROMPT[:length])) for length in LENGTHS], atol=1e-5)


def test_a_classifier_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    folder = write_tiny_classifier(tmp_path / "model", "modernbert-classifier")
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        with pytest.raises(RequestError, match="only classifies"):
            llm.generate([PROMPTS[2]])
        with pytest.raises(RequestError, match="gives no embeddings"):
            llm.embed([PROMPTS[2]])
        with pytest.raises(RequestError, match="has 3 classes, and scores no pairs"):
            llm.score("one", "other")


def test_texts_go_together_as_a_reranker_says_or_as_their_embeddings_are_alike(tmp_path: Path) -> None:
    query, documents = "capital of France", ["Paris is its capital.", "Nothing of the kind.", "Paris is its capital."]
    with LLM(str(FOLDER / f"{RERANKER}.gguf"), dtype="float32", distributed_executor_backend="uni") as llm:
        found = [output.outputs.score for output in llm.score(query, documents)]
        template = read_checkpoint(str(FOLDER / f"{RERANKER}.gguf")).tokenizer.pair_template or ""
        texts = [template.format(query=query, document=document) for document in documents]
        tokens = [llm.get_tokenizer().encode(text, add_special_tokens=False) for text in texts]
        wanted = scores(llm, tokens)[:, 0].tolist()
        with pytest.raises(RequestError, match="got 2 and 3"):
            llm.score(["one", "two"], documents)
    assert found == wanted
    assert found[0] == found[2] != found[1]
    folder = write_tiny_encoder(tmp_path / "bert", "bert")
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        alike = [output.outputs.score for output in llm.score(documents, documents[1:] + documents[:1])]
        vectors = [output.outputs.embedding for output in llm.embed(documents)]
    wanted = [float(np.dot(vectors[index], vectors[(index + 1) % 3])) for index in range(3)]
    np.testing.assert_allclose(alike, wanted, atol=1e-6)
    assert alike[2] == pytest.approx(1)


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
    ],
)
def test_the_files_say_what_makes_scores_of_numbers(tmp_path: Path, fields: dict[str, Any], activation: str) -> None:
    folder = write_tiny_classifier(tmp_path / "model", "bert-classifier", **fields, id2label={"0": "relevance"})
    embedding = read_checkpoint(folder).embedding
    assert (embedding.activation, embedding.labels) == (activation, ("relevance",))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.ReLU"}}, "ReLU"),
        ({"classifier_pooling": "late"}, "classifier_pooling"),
        ({"architectures": ["DebertaV2ForSequenceClassification"]}, "DebertaV2ForSequenceClassification"),
    ],
)
def test_other_heads_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    folder = write_tiny_classifier(tmp_path / "model", "bert-classifier", **fields)
    with pytest.raises(ConfigError, match=text):
        read_checkpoint(folder)


def test_a_model_that_tells_texts_apart_needs_the_name_of_the_separator(tmp_path: Path) -> None:
    folder = Path(write_tiny_classifier(tmp_path / "model", "bert-classifier"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sep_token": None}))  # and it has no [SEP]
    with pytest.raises(ConfigError, match="names no sep_token"):
        read_checkpoint(str(folder))
