"""Embedding settings in a model's files: modules.json of sentence-transformers, or a field of a GGUF file.

https://sbert.net/docs/package_reference/sentence_transformer/models.html and llama.cpp's `pooling_type`. Opens no file.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec

from pyllm.errors import ConfigError
from pyllm.families.spec import DenseActivation, DenseSpec, ModelSpec, Shape
from pyllm.families.tensor_map import dense_tensor

SENTENCE_BERT_CONFIG = "sentence_bert_config.json"
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
GGUF_POOLING = ("none", "mean", "cls", "last", "rank")
"""llama.cpp's pooling types, in the order of their numbers."""
PoolingKind = Literal["last", "mean", "cls"]
ClassActivation = Literal["sigmoid", "softmax", "identity"]
"""The function that makes scores of the numbers that a classifier gives."""
# Text models have 'none'.
_KINDS: dict[str, PoolingKind] = {
    "none": "last",
    "last": "last",
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
    "cls_token": "cls",
}


class Module(msgspec.Struct):
    """An entry of modules.json."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        """The class, without its package."""
        return self.type.rpartition(".")[2]


class PoolingConfig(msgspec.Struct):
    """The fields of 1_Pooling/config.json: one flag that is true, or `pooling_mode` in newer files."""

    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    pooling_mode: str | None = None

    def mode(self, usual: str) -> str:
        """The name of the pooling mode, or several joined by a plus; `usual` where the file names none."""
        flags = [name for name in self.__struct_fields__ if getattr(self, name) is True]
        names = [name.removeprefix("pooling_mode_").removesuffix("_tokens") for name in flags]
        return self.pooling_mode or "+".join(names) or usual


class _ProcessingKwargs(msgspec.Struct):
    chat_template: dict[str, Any] = {}


class TransformerConfig(msgspec.Struct):
    """The fields of sentence_bert_config.json, which is of all that sentence-transformers runs, with its defaults.

    `processing_kwargs.chat_template` are arguments of `apply_chat_template`, also the name `chat_template` of another
    template than the default one.
    """

    max_seq_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    do_lower_case: bool = False
    processing_kwargs: _ProcessingKwargs = msgspec.field(default_factory=_ProcessingKwargs)


class DenseConfig(msgspec.Struct):
    """The fields of a Dense module's config.json, with the defaults of sentence-transformers."""

    in_features: Annotated[int, msgspec.Meta(ge=1)]
    out_features: Annotated[int, msgspec.Meta(ge=1)]
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    module_input_name: str | None = None
    module_output_name: str | None = None

    def spec(self) -> DenseSpec:
        """The layer.

        Raises:
            ConfigError: its activation is not supported, or it is not for embeddings of texts.
        """
        kind = self.activation_function.rpartition(".")[2]
        if kind not in _ACTIVATIONS:
            raise ConfigError(f"the activation {kind} of a Dense module is not supported, only Identity and Tanh")
        for name in (self.module_input_name, self.module_output_name):
            if name not in {None, "sentence_embedding"}:
                raise ConfigError(f"a Dense module for {name} is not supported, only for sentence_embedding")
        return DenseSpec(
            in_features=self.in_features,
            out_features=self.out_features,
            bias=self.bias,
            activation=_ACTIVATIONS[kind],
        )


_ACTIVATIONS: dict[str, DenseActivation] = {"Identity": "identity", "Tanh": "tanh"}


class MatryoshkaConfig(msgspec.Struct):
    """The fields of config.json about Matryoshka embeddings, as in vLLM."""

    is_matryoshka: bool | None = None
    matryoshka_dimensions: list[Annotated[int, msgspec.Meta(ge=1)]] | None = None


class EmbeddingSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pooling of a prompt's hidden states after the final norm into an embedding, which is normalised to length 1.

    The layers of `ModelSpec.dense` follow pooling.

    - `pooling`: the state of the last token, the mean of all, or the state of the first token (cls).
    - `is_matryoshka`: the model was trained so that prefixes of embeddings are embeddings (arXiv 2205.13147), of the
      sizes `dimensions`, or of any size if these are empty.
    - `is_only_use`: the model has no head or is an encoder, and cannot generate.
    - `is_main_use`: the files say how to pool, or the model has no other use; other models embed, too, but were not
      trained to, so that their embeddings rank nothing.
    - `max_seq_length`: tokens of a text that the model is meant for, if its files say so; it may be able to more.
    - `labels`: the names of the classes of a classifier, which gives a number for each in place of an embedding;
      `activation` makes scores of them. `relevant_class` is the index of the class of pairs of texts that belong
      together; None: the model scores no pairs.
    - `pair_template`: a text around a pair, with {query} and {document}, for models that need one. `pair_variables` are
      those of a chat template that is put around a pair.
    """

    pooling: PoolingKind = "last"
    is_matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    is_only_use: bool = False
    is_main_use: bool = False
    max_seq_length: int | None = None
    labels: tuple[str, ...] = ()
    activation: ClassActivation = "identity"
    relevant_class: int | None = None
    pair_template: str | None = None
    pair_variables: dict[str, Any] = {}


def embedding_spec(
    modules: Sequence[Module],
    transformer: TransformerConfig,
    pooling: PoolingConfig,
    matryoshka: MatryoshkaConfig,
    is_encoder: bool = False,
) -> EmbeddingSpec:
    """The embedding settings of a folder.

    A missing file has its defaults: pooling by the mean for an encoder, as in sentence-transformers, else the last.

    Raises:
        ConfigError: a module or pooling mode is not supported; the text names it.
    """
    names = [module.name for module in modules]
    if unknown := [name for name in names if name not in _MODULES]:
        raise ConfigError(f"modules.json: the module {unknown[0]} is not supported, only {', '.join(_MODULES)}")
    for before, name in pairwise(("", *names)):
        if name == "Dense" and before not in {"Pooling", "Dense"}:
            raise ConfigError(f"modules.json: Dense after {before or 'nothing'} is not supported, only after Pooling")
    if transformer.do_lower_case:
        text = "do_lower_case is not supported: set it to false, and let the tokenizer's normalizer do it"
        raise ConfigError(f"{SENTENCE_BERT_CONFIG}: {text}")
    sizes = tuple(sorted(matryoshka.matryoshka_dimensions or ()))
    is_matryoshka = bool(sizes or matryoshka.is_matryoshka)
    kind = _kind(pooling.mode("mean" if is_encoder else "last"))
    return EmbeddingSpec(
        pooling=kind,
        is_matryoshka=is_matryoshka,
        dimensions=sizes,
        is_main_use=bool(modules) or is_encoder,
        max_seq_length=transformer.max_seq_length,
    )


def gguf_embedding_spec(pooling_type: int, is_encoder: bool = False) -> EmbeddingSpec:
    """The embedding settings of a GGUF file. Older files of encoders name no type: they are pooled by the mean.

    Raises:
        ConfigError: the pooling type is not supported.
    """
    mode = GGUF_POOLING[pooling_type] if pooling_type < len(GGUF_POOLING) else str(pooling_type)
    is_unnamed = is_encoder and mode == "none"
    kind = "mean" if is_unnamed else _kind(mode)
    return EmbeddingSpec(pooling=kind, is_only_use=is_encoder, is_main_use=is_encoder or mode != "none")


def with_dense(spec: ModelSpec, dense: Sequence[DenseSpec]) -> ModelSpec:
    """A copy with layers after pooling.

    Raises:
        ConfigError: one of them takes another number of features than the one before it gives.
    """
    size = spec.hidden_size
    for layer in dense:
        if layer.in_features != size:
            raise ConfigError(f"a layer after pooling takes {layer.in_features} features, and gets {size}")
        size = layer.out_features
    return msgspec.structs.replace(spec, dense=tuple(dense))


def gguf_dense(shapes: Mapping[str, Shape]) -> list[DenseSpec]:
    """The layers after pooling in a GGUF file, by the shapes of its tensors."""
    found: list[DenseSpec] = []
    while (shape := shapes.get(dense_tensor(f"{len(found)}.weight"))) is not None and len(shape) == 2:
        has_bias = dense_tensor(f"{len(found)}.bias") in shapes
        found.append(DenseSpec(in_features=shape[1], out_features=shape[0], bias=has_bias))
    return found


def _kind(mode: str) -> PoolingKind:
    if mode not in _KINDS:
        raise ConfigError(f"pooling by {mode!r} is not supported, only by the last token, the mean, or the first token")
    return _KINDS[mode]
