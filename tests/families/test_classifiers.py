"""Classifiers through the whole engine: scores equal those of transformers and of llama.cpp, in any company."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from pyllm import LLM, PoolingParams
from pyllm.checkpoint.pooling.embedding_config import EmbeddingSpec
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError, RequestError
from pyllm.frontend.scoring.scores import class_scores
from tests.families.record_gguf import CLASSIFIERS_IN_GGUF, EMBEDDINGS, FOLDER, LENGTHS
from tests.families.test_encoders import OPTIONS, PROMPTS
from tests.families.test_gguf import write_changed
from tests.families.tiny_classifiers import ANSWER_IDS, CLASSIFIERS, RERANKER, expected, write_tiny_classifier
from tests.families.tiny_encoders import CONTEXT, SIZES, with_large_numbers, write_tiny_encoder
from tests.families.tiny_families import PROMPT
from tests.tiny_model import write_tokenizer


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
    """Not by the separator: a text may have one of its own, and one text alone is no second one."""
    firsts, seconds = ["one", "a<|end|>b", ""], ["other <|end|> text", "two", "three"]
    folder = write_tiny_classifier(tmp_path / "bert", "bert-classifier")
    library = Tokenizer.from_file(f"{folder}/tokenizer.json")
    pairs = library.encode_batch(list(zip(firsts, seconds, strict=True)))
    with LLM(folder, **OPTIONS, **options) as llm:
        found = [output.outputs.score for output in llm.score(firsts, seconds)]
        whole = scores(llm, [pair.ids for pair in pairs])[:, 0]
    wanted = [activated(expected("bert-classifier", pair.ids, pair.type_ids))[0] for pair in pairs]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    alone = [activated(expected("bert-classifier", pair.ids))[0] for pair in pairs]
    np.testing.assert_allclose(whole, alone, atol=1e-5)
    assert np.abs(np.subtract(alone, wanted)).min() > 1e-3


def test_an_empty_text_before_the_second_one_is_scored_and_ends_no_worker(tmp_path: Path) -> None:
    """Nothing stands before a first text without tokens, so that the sequence begins with the second one."""
    folder = Path(write_tiny_classifier(tmp_path / "bert", "bert-classifier"))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    with LLM(str(folder), **OPTIONS, distributed_executor_backend="uni") as llm:
        (found,) = llm.score("", ["b"])
    (wanted,) = activated(expected("bert-classifier", [98], [1]))
    assert found.outputs.score == pytest.approx(wanted, abs=1e-5)


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
    embedding, theirs = (read_checkpoint(str(path)).embedding for path in (folder, FOLDER / f"{RERANKER}.gguf"))
    assert (embedding.labels, theirs.labels) == (("no", "yes"), ("yes", "no"))  # in the order of the tokens
    assert (embedding.relevant_class, theirs.relevant_class) == (1, 0)
    assert embedding.pair_template == theirs.pair_template
    with LLM(str(folder), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = scores(llm, PROMPTS)
    wanted = np.array([activated(expected(RERANKER, prompt)) for prompt in PROMPTS])
    np.testing.assert_allclose(found[:, ::-1], wanted, atol=1e-5)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    entries = {entry.name: entry.source.name for entry in read_checkpoint(str(folder)).tensors}
    assert entries["dense.0.weight"] == "lm_head.weight"
    for path, is_reranker in (
        ("qwen3_reranker", True),
        ("models--Qwen--Qwen3-Reranker-0.6B/snapshots/0123", True),
        ("qwen3-reranker-tuned/other", False),
        ("Qwen3-Reranker/snapshot/other", False),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        folder = folder.rename(tmp_path / path)
        assert (read_checkpoint(str(folder)).embedding != EmbeddingSpec()) == is_reranker


def test_llama_cpps_quantiser_makes_a_vector_of_one_class(tmp_path: Path) -> None:
    def flat(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors | {"cls.output.weight": tensors["cls.output.weight"].reshape(-1)}

    name = "xlm-roberta-classifier"
    write_changed(FOLDER / f"{name}.gguf", tmp_path / "flat.gguf", tensors=flat)
    with LLM(str(tmp_path / "flat.gguf"), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = scores(llm, [PROMPT[:length] for length in LENGTHS])
    np.testing.assert_allclose(found, [activated(expected(name, PROMPT[:length])) for length in LENGTHS], atol=1e-5)


def test_a_classifier_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    folder, short = write_tiny_classifier(tmp_path / "model", "modernbert-classifier"), PoolingParams(dimensions=2)
    with LLM(folder, **OPTIONS, distributed_executor_backend="uni") as llm:
        with pytest.raises(RequestError, match="only classifies"):
            llm.generate([PROMPTS[2]])
        with pytest.raises(RequestError, match="gives no embeddings"):
            llm.embed([PROMPTS[2]])
        with pytest.raises(RequestError, match="has 3 classes, and scores no pairs"):
            llm.score("one", "other")
        for ask in (
            lambda: llm.classify([PROMPTS[2]], pooling_params=short),
            lambda: llm.score("a", "b", pooling_params=short),
        ):
            with pytest.raises(RequestError, match="dimensions can only be None"):
                ask()


def test_texts_go_together_as_a_reranker_says_or_as_their_embeddings_are_alike(tmp_path: Path) -> None:
    query, documents = "capital of France", ["Paris is its capital.", "Nothing of the kind.", "Paris is its capital."]
    with LLM(str(FOLDER / f"{RERANKER}.gguf"), dtype="float32", distributed_executor_backend="uni") as llm:
        found = [output.outputs.score for output in llm.score(query, documents)]
        template = read_checkpoint(str(FOLDER / f"{RERANKER}.gguf")).embedding.pair_template or ""
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
        ({"problem_type": "single_label_classification"}, "sigmoid"),  # Softmax of one class would be 1.
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
        ({"id2label": {"0": "no", "1": "yes"}}, "names the classes 0, 1, and the model has 1"),
        ({"architectures": ["DebertaV2ForSequenceClassification"]}, "DebertaV2ForSequenceClassification"),
    ],
)
def test_other_heads_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    folder = write_tiny_classifier(tmp_path / "model", "bert-classifier", **fields)
    with pytest.raises(ConfigError, match=text):
        read_checkpoint(folder)


def test_words_or_tokens_say_what_a_text_model_answers(tmp_path: Path) -> None:
    """vLLM's overrides, and sentence-transformers' module for text models, of which none says what the name is."""
    folder = Path(write_tiny_classifier(tmp_path / "model", RERANKER))
    wanted = np.array([expected(RERANKER, prompt) for prompt in PROMPTS])
    yes, no = ANSWER_IDS
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"]}
    own = {"is_original_qwen3_reranker": True}
    assert read_checkpoint(str(folder), overrides=overrides | own).embedding == EmbeddingSpec(
        is_only_use=True, is_main_use=True, labels=("no", "yes"), activation="softmax", relevant_class=1
    )
    (folder / "1_LogitScore").mkdir()
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.LogitScore"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for tokens, numbers in (
        ({"true_token_id": yes, "false_token_id": None}, wanted[:, :1]),
        ({"true_token_id": yes, "false_token_id": no}, wanted[:, ::-1]),
    ):
        (folder / "1_LogitScore/config.json").write_text(json.dumps(tokens))
        with LLM(str(folder), **OPTIONS, distributed_executor_backend="uni") as llm:
            given = llm.classify(PROMPTS, pooling_params=PoolingParams(use_activation=False))
        np.testing.assert_allclose([output.outputs.probs for output in given], numbers, atol=1e-4)
    for tokens, text in (
        ({"true_token_id": 300}, "only 264 tokens, not 300"),
        ({"true_token_id": -1}, "true_token_id"),
        ({"true_token_id": 7, "false_token_id": 7}, "the token 7 is for relevant documents and for others"),
    ):
        (folder / "1_LogitScore/config.json").write_text(json.dumps(tokens))
        with pytest.raises(ConfigError, match=text):
            read_checkpoint(str(folder))
    for options in ({"has_dummy_weights": True}, {"implementation": "transformers"}):
        with pytest.raises(ConfigError, match="classifier"):
            read_checkpoint(str(folder), **options)
    (folder / "modules.json").write_text(json.dumps([modules[0], modules[1] | {"path": "a\0b"}]))
    with pytest.raises(ConfigError, match="a path has no NUL"):
        read_checkpoint(str(folder))


def test_added_tokens_may_be_answers(tmp_path: Path) -> None:
    folder = write_tiny_classifier(tmp_path / "model", RERANKER)
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["<|end|>"]}
    assert read_checkpoint(folder, overrides=overrides).spec.dense[0].tokens == (257,)


def test_sentence_transformers_names_the_template_and_its_variables(tmp_path: Path) -> None:
    folder = Path(write_tiny_classifier(tmp_path / "model", "qwen3-classifier"))
    roles = "{% for role in ('query', 'document') %}{{ (messages | selectattr('role', 'eq', role) | first).content }};"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/score.jinja").write_text("{{ task }}" + roles + "{% endfor %}")
    given = {"chat_template": "score", "add_generation_prompt": True, "task": "T:"}
    (folder / "sentence_bert_config.json").write_text(json.dumps({"processing_kwargs": {"chat_template": given}}))
    with LLM(str(folder), **OPTIONS, distributed_executor_backend="uni") as llm:
        (found,) = llm.score("a", "b")
        (wanted,) = llm.classify([llm.get_tokenizer().encode("T:a;b;", add_special_tokens=False)])
    assert found.outputs.score == wanted.outputs.probs[0]


def test_a_chat_template_with_a_query_and_a_document_is_that_of_pairs(tmp_path: Path) -> None:
    folder = Path(write_tiny_classifier(tmp_path / "Qwen3-Reranker-0.6B", RERANKER))
    roles = "{% for role in ('query', 'document') %}{{ (messages | selectattr('role', 'eq', role) | first).content }};"
    (folder / "chat_template.jinja").write_text(roles + "{% endfor %}")
    with LLM(str(folder), **OPTIONS, distributed_executor_backend="uni") as llm:
        (output,) = llm.score("a", "b")
        (wanted,) = llm.classify([llm.get_tokenizer().encode("a;b;", add_special_tokens=False)])
        short = llm.score("a", "b" * CONTEXT, truncate_prompt_tokens=4)[0].outputs.score
        assert short == llm.score("a", "b", truncate_prompt_tokens=-1)[0].outputs.score
        with pytest.raises(RequestError, match=r"^data_2\[1\]: .* context length is 1024"):
            llm.score("a", ["b", "b" * 2000])
    assert output.outputs.score == wanted.outputs.probs[1]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64, "n_positions": 128}),
        ("Phi", {"num_attention_heads": 4, "partial_rotary_factor": 0.5}),  # Its head for text has a bias.
        ("Gemma3Text", {"num_key_value_heads": 2, "head_dim": 8, "use_bidirectional_attention": True}),
    ],
)
def test_text_models_of_other_families_classify(tmp_path: Path, kind: str, fields: dict[str, Any]) -> None:
    """With attention in both directions, too, their last token is pooled."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**SIZES | {"num_labels": 3, "pad_token_id": 0} | fields)
    model = with_large_numbers(getattr(transformers, f"{kind}ForSequenceClassification")(config))
    model.save_pretrained(str(tmp_path))
    write_tokenizer(tmp_path)
    with LLM(str(tmp_path), **OPTIONS, distributed_executor_backend="uni") as llm:
        found = scores(llm, PROMPTS[:4])
    with torch.inference_mode():
        wanted = [activated(model(torch.tensor([prompt])).logits[0].numpy()) for prompt in PROMPTS[:4]]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_bidirectional_llama_pools_the_mean(tmp_path: Path) -> None:
    fields = {"architectures": ["LlamaBidirectionalForSequenceClassification"], "pooling": "avg", "temperature": 1.0}
    folder = write_tiny_classifier(tmp_path / "model", "llama-classifier", **fields)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.spec.is_bidirectional
    assert checkpoint.embedding.pooling == "mean"
    with pytest.raises(ConfigError, match=r"temperature 0\.2 of scores"):
        read_checkpoint(folder, overrides={"temperature": 0.2})


@pytest.mark.parametrize("template", ["only {query}", "{query} {document} {document}"])
def test_a_template_of_a_gguf_file_has_each_text_in_its_place(tmp_path: Path, template: str) -> None:
    def changed(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"tokenizer.chat_template.rerank": template}

    write_changed(FOLDER / f"{RERANKER}.gguf", tmp_path / "model.gguf", changed)
    with pytest.raises(ConfigError, match=r"a text with \{query\} and one \{document\}"):
        read_checkpoint(str(tmp_path / "model.gguf"))
