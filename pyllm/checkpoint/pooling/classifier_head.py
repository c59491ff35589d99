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

CROSS_ENCODER_CONFIG = "config_sentence_transformers.json"


class _Layer(NamedTuple):
    """The name of a linear layer, what follows it, and the name of its norm."""

    name: str
    activation: DenseActivation = "identity"
    norm: str = ""


# In transformers: RoBERTa, DistilBERT, ModernBERT, BERT, text models; in llama.cpp, whose converter drops the first
# layer of BERT.
_HEADS = (
    (_Layer("classifier.dense", "tanh"), _Layer("classifier.out_proj")),
    (_Layer("pre_classifier", "relu"), _Layer("classifier")),
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
    """The fields of config.json about classes.

    - `pooling` and `temperature` are of LlamaBidirectionalForSequenceClassification.
    - `classifier_from_token` is of vLLM: a text model has no head for classes, and answers with one of these words, of
      which the last is for relevant documents.
    - The last two are of sentence-transformers' CrossEncoder, new and old.
    """

    id2label: dict[str, str | int] | None = None
    problem_type: str | None = None
    classifier_pooling: Literal["cls", "mean"] | None = None
    classifier_activation: Literal["gelu"] = "gelu"
    norm_eps: Annotated[float, msgspec.Meta(gt=0)] = 1e-5
    pooling: Any = None
    temperature: Any = None
    classifier_from_token: Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)] | None = None
    sentence_transformers: _OfSentenceTransformers | None = None
    sbert_ce_default_activation_function: str | None = None

    @property
    def named_activation(self) -> str | None:
        """The class in torch that the files name."""
        newer = self.sentence_transformers and self.sentence_transformers.activation_fn
        return newer or self.sbert_ce_default_activation_function

    def activation(self, num_labels: int) -> ClassActivation:
        """The function that makes scores of the model's numbers; by default sigmoid for one class, else softmax.

        Raises:
            ConfigError: the files name another one.
        """
        if named := self.named_activation:
            kind = named.rpartition(".")[2]
            if kind not in _ACTIVATIONS:
                known = ", ".join(_ACTIVATIONS)
                raise ConfigError(f"config.json: the activation {named!r} of scores is not supported, only {known}")
            activation = _ACTIVATIONS[kind]
        else:
            activation = _OF_PROBLEMS.get(self.problem_type or "", "softmax")
        # The softmax of one class is 1, whatever its number.
        return usual_activation(num_labels) if activation == "softmax" else activation

    def label_names(self, number: int) -> tuple[str, ...]:
        """The names of so many classes.

        Raises:
            ConfigError: there are other numbers of names.
        """
        if self.id2label is None:
            return _usual_labels(number)
        if self.id2label.keys() != {str(index) for index in range(number)}:
            text = f"config.json: id2label names the classes {', '.join(self.id2label)}, and the model has {number}"
            raise ConfigError(text)
        return tuple(str(self.id2label[str(index)]) for index in range(number))

    def text_model_pooling(self) -> PoolingKind:
        """The pooling of a text model: the last token, or the mean where it attends to all (`pooling` avg).

        Raises:
            ConfigError: it divides its numbers by a temperature.
        """
        if self.pooling != "avg":
            return "last"
        if self.temperature not in (None, 1):
            raise ConfigError(f"config.json: temperature {self.temperature} of scores is not supported, only 1")
        return "mean"


class LogitScoreConfig(msgspec.Struct):
    """The fields of sentence-transformers' module LogitScore: the tokens for relevant documents and for others."""

    true_token_id: Annotated[int, msgspec.Meta(ge=0)]
    false_token_id: Annotated[int, msgspec.Meta(ge=0)] | None = None

    @property
    def tokens(self) -> list[int]:
        """Both, that for relevant documents last."""
        return [token for token in (self.false_token_id, self.true_token_id) if token is not None]


class ClassifierHead(NamedTuple):
    """The layers of a head, and the file's tensors with those of the head by the names of layers after pooling.

    `labels` are the names of the classes and `relevant_class` the index of that of relevant pairs, where a text model
    answers with a token; else the configuration has them. `pooling` is what the model pools unless told otherwise.
    """

    layers: tuple[DenseSpec, ...]
    tensors: list[FileTensor]
    labels: tuple[str, ...] = ()
    relevant_class: int | None = None
    pooling: PoolingKind = "last"

    @property
    def num_labels(self) -> int:
        """The number of classes."""
        return self.layers[-1].out_features


def usual_activation(num_labels: int) -> ClassActivation:
    """The activation where no file names one, as in vLLM."""
    return "sigmoid" if num_labels == 1 else "softmax"


def find_head(tensors: Sequence[FileTensor], norm_epsilon: float, is_electra: bool = False) -> ClassifierHead:
    """The head among a file's tensors. That of ELECTRA has RoBERTa's names, and GELU (transformers).

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
                activation="gelu" if is_electra and layer.activation == "tanh" else layer.activation,
                norm=NormSpec(epsilon=norm_epsilon, kind="layer", bias=f"{norm}.bias" in weights) if norm else None,
            )
        )
    named = [renamed.get(tensor.name, tensor) for tensor in tensors]
    return ClassifierHead(tuple(layers), named, pooling="last" if head[0].name == "score" else "cls")


def head_of_tokens(spec: ModelSpec, words: Mapping[int, str], tensors: list[FileTensor]) -> ClassifierHead:
    """The head of a text model that answers with one of some tokens, of which the last one is for relevant documents.

    Raises:
        ConfigError: the model has no such token, or its own head has a bias.
    """
    tokens = tuple(sorted(words))
    if tokens[-1] >= spec.vocab_size or spec.head_bias:
        text = "a bias in its head" if spec.head_bias else f"only {spec.vocab_size} tokens, not {tokens[-1]}"
        raise ConfigError(f"the model answers with a token, and has {text}: this is not supported")
    layer = DenseSpec(in_features=spec.hidden_size, out_features=len(tokens), tokens=tokens)
    labels = tuple(words[token] for token in tokens)
    return ClassifierHead((layer,), tensors, labels, tokens.index([*words][-1]))


def with_head(spec: ModelSpec, head: ClassifierHead) -> ModelSpec:
    """A copy of a model's spec with a head; it tells the texts of a pair apart if it has types of tokens (BERT).

    Raises:
        ConfigError: the head is of another model, or the model has types of tokens and no learned positions.
    """
    has_types = spec.token_types > 1
    if has_types and not spec.positions:
        raise ConfigError("a classifier with types of tokens and without learned positions is not supported")
    spec = with_dense(spec, head.layers)
    return msgspec.structs.replace(spec, is_classifier=True, tells_texts_apart=has_types)


def classifier_config(fields: Mapping[str, Any], of_cross_encoder: Mapping[str, Any]) -> ClassifierConfig:
    """The fields of a config.json; where it names no activation, that of config_sentence_transformers.json.

    Raises:
        ConfigError: one has a value that is not supported.
    """
    try:
        config = msgspec.convert(fields, ClassifierConfig)
        newer = msgspec.convert(of_cross_encoder, _OfSentenceTransformers)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json, or {CROSS_ENCODER_CONFIG}: {error}") from None
    return config if config.named_activation else msgspec.structs.replace(config, sentence_transformers=newer)


def classifier_spec(config: ClassifierConfig, head: ClassifierHead, pair_template: str | None = None) -> EmbeddingSpec:
    """The settings of a classifier: it pools as config.json says, by default as its head does.

    Raises:
        ConfigError: as `ClassifierConfig.activation`, `label_names` and `text_model_pooling`.
    """
    answers, number = head.relevant_class is not None, head.num_labels
    labels = head.labels or config.label_names(number)
    return EmbeddingSpec(
        pooling=config.text_model_pooling() if head.pooling == "last" else config.classifier_pooling or head.pooling,
        is_only_use=True,
        labels=labels,
        activation=usual_activation(number) if answers else config.activation(number),
        relevant_class=head.relevant_class if answers else _relevant(labels),
        pair_template=pair_template,
    )


def is_gguf_classifier(fields: Mapping[str, Any], shapes: Mapping[str, Shape]) -> bool:
    """Whether a GGUF file has a head for classes. Those of encoders do not always name the pooling type `rank`."""
    return "cls.output.weight" in shapes or fields.get(f"{fields['general.architecture']}.pooling_type") == _RANK


def gguf_classifier_spec(config: Config, head: ClassifierHead, is_encoder: bool, has_mean: bool) -> EmbeddingSpec:
    """The settings of a classifier in a GGUF file; with `has_mean` its architecture pools the mean unless told.

    Raises:
        ConfigError: the names of its classes are too few, or its pooling or its template is not supported.
    """
    number = head.num_labels
    named = "classifier.output_labels" in config
    labels = config.texts("classifier.output_labels") if named else _usual_labels(number)
    if len(labels) != number:
        raise config.error("classifier.output_labels", list(labels), f"a name for each of {number} classes")
    usual = GGUF_POOLING.index("mean" if has_mean else "cls")
    pooling_type = config.integer("classifier.pooling_type", usual, least=0)
    template = config.text("tokenizer.chat_template.rerank", "") or None
    if template is not None and (template.count("{document}") != 1 or "{query}" not in template):
        raise config.error("tokenizer.chat_template.rerank", template, "a text with {query} and one {document}")
    return EmbeddingSpec(
        pooling=gguf_embedding_spec(pooling_type).pooling if is_encoder else "last",
        is_only_use=True,
        labels=labels,
        activation=usual_activation(number),
        relevant_class=_relevant(labels),
        pair_template=template,
    )


def _relevant(labels: Sequence[str]) -> int | None:
    """The class of pairs that belong together: the only one, or the one that rerankers made of text models have."""
    if len(labels) == 1:
        return 0
    return labels.index("yes") if "yes" in labels else None


def _usual_labels(number: int) -> tuple[str, ...]:
    """The names that transformers gives to classes without names."""
    return tuple(f"LABEL_{index}" for index in range(number))


def _full_name(name: str, weights: Mapping[str, FileTensor]) -> str | None:
    """The name of a layer with whatever is before it in the file; None: the file has no such matrix or norm."""
    found = [each for each in weights if each == f"{name}.weight" or each.endswith(f".{name}.weight")]
    return found[0].removesuffix(".weight") if len(found) == 1 else None
