"""Heads for classes by their tensors' names, and what config.json says of their scores."""

from typing import Any

import pytest

from pyllm.checkpoint.pooling.classifier_head import (
    LogitScoreConfig,
    classifier_config,
    classifier_spec,
    find_head,
    head_of_tokens,
    with_head,
)
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec, NormSpec
from pyllm.families.tensors import FileTensor

SIZE = 8
IDENTITY = "torch.nn.modules.linear.Identity"


def tensor(name: str, *shape: int) -> FileTensor:
    return FileTensor(name, "F32", shape, 0, 0, 0)


def spec(**fields: Any) -> ModelSpec:
    sizes = {"vocab_size": 20, "hidden_size": SIZE, "max_position_embeddings": 9}
    norm = NormSpec(epsilon=1e-5)
    return ModelSpec(architecture="", layers=(), norm=norm, ropes=(), tie_word_embeddings=True, **sizes | fields)


def linear(name: str, rows: int, bias: bool = True) -> list[FileTensor]:
    return [tensor(f"{name}.weight", rows, SIZE), *([tensor(f"{name}.bias", rows)] if bias else [])]


@pytest.mark.parametrize(
    ("names", "activations", "pooling"),
    [
        (["classifier.dense", "classifier.out_proj"], ["tanh", "identity"], "cls"),  # RoBERTa
        (["pre_classifier", "classifier"], ["relu", "identity"], "cls"),  # DistilBERT
        (["bert.pooler.dense", "classifier"], ["tanh", "identity"], "cls"),
        (["score"], ["identity"], "last"),
        (["cls.output"], ["identity"], "cls"),
    ],
)
def test_a_head_is_found_by_its_names(names: list[str], activations: list[str], pooling: str) -> None:
    others = [tensor("encoder.layer.0.output.dense.weight", SIZE, SIZE)]
    layers = [each for name in names[:-1] for each in linear(name, SIZE)] + linear(names[-1], 3, bias=False)
    head = find_head([*others, *layers], 1e-5)
    assert ([layer.activation for layer in head.layers], head.pooling) == (activations, pooling)
    assert (head.num_labels, head.layers[-1].bias) == (3, False)
    assert head.tensors[0] == others[0]
    with_head(spec(), head)
    with pytest.raises(ConfigError, match=f"takes {SIZE} features, and gets 9"):
        with_head(spec(hidden_size=9), head)


def test_electras_head_has_robertas_names_and_gelu() -> None:
    tensors = linear("classifier.dense", SIZE) + linear("classifier.out_proj", 1)
    assert find_head(tensors, 1e-5, is_electra=True).layers[0].activation == "gelu"


def test_two_layers_of_one_name_are_no_head() -> None:
    with pytest.raises(ConfigError, match="no head for classes that is known here"):
        find_head(linear("one.score", 2) + linear("other.score", 2), 1e-5)


@pytest.mark.parametrize(
    ("fields", "newer", "activation"),
    [
        ({}, {}, "sigmoid"),
        ({}, {"activation_fn": IDENTITY}, "identity"),  # config_sentence_transformers.json
        ({"sentence_transformers": None}, {"activation_fn": IDENTITY}, "identity"),
        ({"sentence_transformers": {"version": "4.0"}}, {"activation_fn": IDENTITY}, "identity"),
        ({"sbert_ce_default_activation_function": IDENTITY}, {"activation_fn": "torch.nn.Sigmoid"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Softmax"}}, {}, "sigmoid"),
    ],
)
def test_the_first_file_that_names_an_activation_counts(
    fields: dict[str, Any], newer: dict[str, Any], activation: str
) -> None:
    head = find_head(linear("score", 1), 1e-5)
    assert classifier_spec(classifier_config(fields, newer), head).activation == activation


def test_scores_of_answers_are_probabilities_whatever_the_files_name() -> None:
    named = classifier_config({}, {"activation_fn": IDENTITY})
    for tokens, activation in ((LogitScoreConfig(7), "sigmoid"), (LogitScoreConfig(7, 9), "softmax")):
        head = head_of_tokens(spec(), {token: str(token) for token in tokens.tokens}, [])
        found = classifier_spec(named, head)
        assert (found.activation, found.labels[found.relevant_class or 0]) == (activation, "7")
    for refused, text in ((spec(head_bias=True), "a bias in its head"), (spec(vocab_size=7), "only 7 tokens, not 7")):
        with pytest.raises(ConfigError, match=text):
            head_of_tokens(refused, {7: "yes"}, [])


@pytest.mark.parametrize("names", [{"0": "a"}, {"0": "a", "2": "b"}, {"0": "a", "1": "b", "2": "c"}])
def test_each_class_has_a_name(names: dict[str, str]) -> None:
    head = find_head(linear("score", 2), 1e-5)
    with pytest.raises(ConfigError, match="and the model has 2"):
        classifier_spec(classifier_config({"id2label": names}, {}), head)
    assert classifier_spec(classifier_config({"id2label": {"1": 5, "0": "a"}}, {}), head).labels == ("a", "5")
    assert classifier_spec(classifier_config({}, {}), head).labels == ("LABEL_0", "LABEL_1")


def test_token_types_need_learned_positions() -> None:
    head = find_head(linear("score", 1), 1e-5)
    assert with_head(spec(positions=9, token_types=2), head).tells_texts_apart
    assert not with_head(spec(positions=9, token_types=1), head).tells_texts_apart
    with pytest.raises(ConfigError, match="without learned positions"):
        with_head(spec(token_types=2), head)
