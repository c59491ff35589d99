"""The head of a model that gives each of some classes a score: its layers after pooling, found by their tensors' names.

Rerankers (cross-encoders) have one class. Opens no file.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from pyllm.checkpoint.pooling.embedding_config import (
    GGUF_POOLING,
    ClassActivation,
    EmbeddingSpec,
    PoolingKind,
    gguf_embedding_spec,
    with_dense,
)
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.spec import DenseActivation, DenseSpec, ModelSpec, NormSpec, Shape
from pyllm.families.tensor_map import dense_tensor
from pyllm.families.tensors import FileTensor


class _Layer(NamedTuple):
    """The name of a linear layer, what follows it, and the name of its norm."""

    name: str
    activation: DenseActivation = "identity"
    norm: str = ""


# In transformers: RoBERTa, ModernBERT, BERT, text models; in llama.cpp, whose converter drops the first layer of BERT.
_HEADS = (
    (_Layer("classifier.dense", "tanh"), _Layer("classifier.out_proj")),
    (_Layer("head.dense", "gelu", "head.norm"), _Layer("classifier")),
    (_Layer("pooler.dense", "tanh"), _Layer("classifier")),
    (_Layer("score"),),
    (_Layer("cls", "gelu", "cls.norm"), _Layer("cls.output")),
    (_Layer("cls", "tanh"), _Layer("cls.output")),
    (_Layer("cls.output"),),
)
_ACTIVATIONS: Mapping[str, ClassActivation] = {"Sigmoid": "sigmoid", "Softmax": "softmax", "Identity": "identity"}
_RANK = GGUF_POOLING.index("rank")
# Of transformers' `problem_type`.
_OF_PROBLEMS: Mapping[str, ClassActivation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


class _OfSentenceTransformers(msgspec.Struct):
    activation_fn: str | None = None


class ClassifierConfig(msgspec.Struct):
    """The fields of config.json about classes; the last two are of sentence-transformers' CrossEncoder, new and old."""

    id2label: dict[str, str] | None = None
    problem_type: str | None = None
    classifier_pooling: Literal["cls", "mean"] | None = None
    classifier_activation: Literal["gelu"] = "gelu"
    norm_eps: Annotated[float, msgspec.Meta(gt=0)] = 1e-5
    sentence_transformers: _OfSentenceTransformers | None = None
    sbert_ce_default_activation_function: str | None = None

    def activation(self, num_labels: int) -> ClassActivation:
        """The function that makes scores of the model's numbers; by default sigmoid for one class, else softmax.

        Raises:
            ConfigError: the files name another one.
        """
        newer = self.sentence_transformers and self.sentence_transformers.activation_fn
        if named := newer or self.sbert_ce_default_activation_function:
            kind = named.rpartition(".")[2]
            if kind not in _ACTIVATIONS:
                known = ", ".join(_ACTIVATIONS)
                raise ConfigError(f"config.json: the activation {named!r} of scores is not supported, only {known}")
            return _ACTIVATIONS[kind]
        return _OF_PROBLEMS.get(self.problem_type or "", usual_activation(num_labels))


class ClassifierHead(NamedTuple):
    """The layers of a head, and the file's tensors with those of the head by the names of layers after pooling.

    `labels` are the names of the classes, empty where the configuration has them.
    """

    layers: tuple[DenseSpec, ...]
    tensors: list[FileTensor]
    labels: tuple[str, ...] = ()

    @property
    def num_labels(self) -> int:
        """The number of classes."""
        return self.layers[-1].out_features


def usual_activation(num_labels: int) -> ClassActivation:
    """The activation where no file names one, as in vLLM."""
    return "sigmoid" if num_labels == 1 else "softmax"


def find_head(tensors: Sequence[FileTensor], norm_epsilon: float) -> ClassifierHead:
    """The head among a file's tensors.

    Raises:
        ConfigError: no known head is there.
    """
    weights = {tensor.name: tensor for tensor in tensors}
    for head in _HEADS:
        names = [_full_name(layer.name, weights) for layer in head]
        norms = [_full_name(layer.norm, weights) if layer.norm else "" for layer in head]
        if None not in names and None not in norms:
            break
    else:
        known = ", ".join(dict.fromkeys(" and ".join(layer.name for layer in head) for head in _HEADS))
        raise ConfigError(f"the model's files have no head for classes that is known here: {known}")
    renamed: dict[str, FileTensor] = {}
    layers = []
    for index, (layer, name, norm) in enumerate(zip(head, names, norms, strict=True)):
        shape = weights[f"{name}.weight"].shape
        rows, columns = shape if len(shape) == 2 else (1, *shape)  # llama.cpp's quantiser makes one row a vector.
        for kind, sizes in (("weight", (rows, columns)), ("bias", (rows,))):
            if (tensor := weights.get(f"{name}.{kind}")) is not None:
                own = msgspec.structs.replace(tensor, name=dense_tensor(f"{index}.{kind}"), shape=sizes)
                renamed[tensor.name] = own
            if norm and (tensor := weights.get(f"{norm}.{kind}")) is not None:
                renamed[tensor.name] = msgspec.structs.replace(tensor, name=dense_tensor(f"{index}.norm.{kind}"))
        layers.append(
            DenseSpec(
                in_features=columns,
                out_features=rows,
                bias=f"{name}.bias" in weights,
                activation=layer.activation,
                norm=NormSpec(epsilon=norm_epsilon, kind="layer", bias=f"{norm}.bias" in weights) if norm else None,
            )
        )
    return ClassifierHead(tuple(layers), [renamed.get(tensor.name, tensor) for tensor in tensors])


def head_of_words(
    spec: ModelSpec, words: Sequence[str], ids: Sequence[int], tensors: list[FileTensor]
) -> ClassifierHead:
    """The head of a text model that answers with one of two words, which have these token ids."""
    (lower, first), (upper, second) = sorted(zip(ids, words, strict=True))
    layer = DenseSpec(in_features=spec.hidden_size, out_features=2, tokens=(lower, upper))
    return ClassifierHead((layer,), tensors, (first, second))


def with_head(spec: ModelSpec, head: ClassifierHead, separator: int | None) -> ModelSpec:
    """A copy of a model's spec with a head; the token `separator` ends the first text of a pair.

    Raises:
        ConfigError: the head is of another model, or the model tells both texts apart and there is no such token.
    """
    has_types = spec.positions > 0 and spec.token_types > 1
    if has_types and separator is None:
        raise ConfigError("the tokenizer names no sep_token, after which the second text of a pair begins")
    spec = with_dense(spec, head.layers)
    return msgspec.structs.replace(spec, is_classifier=True, separator=separator if has_types else None)


def classifier_config(fields: Mapping[str, Any]) -> ClassifierConfig:
    """The fields of a config.json.

    Raises:
        ConfigError: one has a value that is not supported.
    """
    try:
        return msgspec.convert(fields, ClassifierConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {error}") from None


def classifier_spec(config: ClassifierConfig, head: ClassifierHead, is_encoder: bool) -> EmbeddingSpec:
    """The settings of a classifier: it pools the first token of an encoder, or the last of a text model.

    Raises:
        ConfigError: as `ClassifierConfig.activation`, or config.json names another number of classes.
    """
    number = head.num_labels
    named = config.id2label or {}
    labels = head.labels or tuple(named.get(str(index), usual) for index, usual in enumerate(_usual_labels(number)))
    pooling: PoolingKind = (config.classifier_pooling or "cls") if is_encoder else "last"
    return EmbeddingSpec(pooling=pooling, is_only_use=True, labels=labels, activation=config.activation(number))


def is_gguf_classifier(fields: Mapping[str, Any], shapes: Mapping[str, Shape]) -> bool:
    """Whether a GGUF file has a head for classes. Those of encoders do not always name the pooling type `rank`."""
    return "cls.output.weight" in shapes or fields.get(f"{fields['general.architecture']}.pooling_type") == _RANK


def gguf_classifier_spec(config: Config, head: ClassifierHead, is_encoder: bool, has_mean: bool) -> EmbeddingSpec:
    """The settings of a classifier in a GGUF file; with `has_mean` its architecture pools the mean unless told.

    Raises:
        ConfigError: the names of its classes are too few, or its pooling is not supported.
    """
    number = head.num_labels
    named = "classifier.output_labels" in config
    labels = config.texts("classifier.output_labels") if named else _usual_labels(number)
    if len(labels) != number:
        raise config.error("classifier.output_labels", list(labels), f"a name for each of {number} classes")
    usual = GGUF_POOLING.index("mean" if has_mean else "cls")
    pooling = gguf_embedding_spec(config.integer("classifier.pooling_type", usual)).pooling if is_encoder else "last"
    return EmbeddingSpec(pooling=pooling, is_only_use=True, labels=labels, activation=usual_activation(number))


def _usual_labels(number: int) -> tuple[str, ...]:
    """The names that transformers gives to classes without names."""
    return tuple(f"LABEL_{index}" for index in range(number))


def _full_name(name: str, weights: Mapping[str, FileTensor]) -> str | None:
    """The name of a layer with whatever is before it in the file; None: the file has no such matrix or norm."""
    found = [each for each in weights if each == f"{name}.weight" or each.endswith(f".{name}.weight")]
    return found[0].removesuffix(".weight") if len(found) == 1 else None
