"""Makes a checkpoint from a Hugging Face folder: config.json, tensors, tokenizer. Reads no weights, knows no GGUF."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from pyllm.checkpoint.generation_config import SamplingDefaults, end_token_ids, sampling_defaults
from pyllm.checkpoint.hub_files import CONVERT, WEIGHTS
from pyllm.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer, read_vocabulary
from pyllm.checkpoint.json_files import read_json
from pyllm.checkpoint.model_config import read_model_config
from pyllm.checkpoint.pooling.classifier_head import (
    CROSS_ENCODER_CONFIG,
    ClassifierHead,
    LogitScoreConfig,
    classifier_config,
    classifier_spec,
    find_head,
    head_of_tokens,
    with_head,
)
from pyllm.checkpoint.pooling.embedding_config import (
    SENTENCE_BERT_CONFIG,
    DenseConfig,
    EmbeddingSpec,
    MatryoshkaConfig,
    Module,
    PoolingConfig,
    TransformerConfig,
    embedding_spec,
    with_dense,
)
from pyllm.checkpoint.quantised_tensors import Gathered, gather
from pyllm.checkpoint.quantization_config import read_quantization_config
from pyllm.checkpoint.safetensors_files import read_file, read_tensors, unread_files
from pyllm.checkpoint.types import (
    Checkpoint,
    TokenizerFiles,
    check_vocabulary,
    have_same_content,
    weights_dtype,
    weights_fingerprint,
)
from pyllm.errors import ConfigError
from pyllm.families.config import Config, UnsupportedFeatureError
from pyllm.families.family import Family, Reranker
from pyllm.families.registry import UnknownArchitectureError, find_family
from pyllm.families.spec import DenseSpec, ModelImpl, ModelSpec
from pyllm.families.tensor_map import (
    MissingTensorError,
    dense_tensor,
    dummy_entries,
    has_own_head,
    map_probed,
    map_tensors,
    tied_matrices,
    without_head,
)
from pyllm.families.tensor_names import TensorNames
from pyllm.families.tensors import FileTensor, TensorEntry
from pyllm.families.text_models import text_model
from pyllm.families.transformers_probe import Probed, ProbeRequest

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
# Name parts that peft gives to an adapter's tensors and to the layers that it changes.
_OF_ADAPTERS = (".lora_", ".base_layer.", ".modules_to_save.", ".original_module.", "base_model.model.")
_ADAPTER = (
    "a LoRA adapter, which is not supported by itself: merge it into its model (peft's `merge_and_unload`, then "
    "`save_pretrained`) and give that folder"
)

Probe = Callable[[ProbeRequest], Probed]
"""Says what transformers makes of a model, or raises `ConfigError`."""


def read_huggingface(
    folder: Path,
    tokenizer: TokenizerFiles | None = None,
    implementation: ModelImpl = "auto",
    probe: Probe | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """The checkpoint in a folder as `save_pretrained` writes it; a given `tokenizer` replaces the folder's.

    Without a `probe`, only models of a family are supported. `overrides` replace entries of config.json.

    Raises:
        ConfigError: a file is missing or damaged, or the model needs a feature that is not supported.
    """
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is {_ADAPTER}")
    fields, has_head, is_classifier = read_model_config(folder, overrides)
    config = Config(fields)
    quantization = read_quantization_config(config)  # first, so that an unsupported method is named in the error
    files, tensors = read_tensors(folder)
    if adapters := [tensor.name for tensor in tensors if any(part in tensor.name for part in _OF_ADAPTERS)]:
        raise ConfigError(f"{folder} has {len(adapters)} tensors such as {adapters[0]!r}, {_ADAPTER}")
    may_be_other = probe is not None and implementation == "auto"
    text = text_model(config)
    family = None if implementation == "transformers" else _family(text, may_be_other)
    gathered, dense = gather(tensors, quantization, files), _dense_layers(folder)
    asked = None if family is None or is_classifier else _asked(folder, family)
    if family is not None and (is_classifier or asked is not None):
        spec = family.spec(text)
        tokenizer = tokenizer or read_huggingface_tokenizer(folder)
        head, embedding = _read_head(folder, fields, asked, spec, tokenizer, tensors=gathered.tensors)
        spec, of_head = with_head(spec, head), gathered._replace(tensors=head.tensors)
        mapped = _map_to_family(family.tensors, spec, of_head, files, has_head)._replace(classifier=embedding)
    elif family is not None:
        files += _gather_dense(dense, gathered, len(files))
        spec = with_dense(family.spec(text), list(dense.values()))
        mapped = _map_to_family(family.tensors, spec, gathered, files, has_head)
    elif is_classifier or _logit_score(folder) is not None:
        raise ConfigError(f"{folder}: classifiers are not supported where transformers computes the model")
    elif dense:
        raise ConfigError(f"{folder}: Dense modules are not supported where transformers computes the model")
    elif quantization is not None and quantization.method == "mxfp4":
        raise ConfigError("transformers cannot compute mxfp4 weights here: use --model-impl native")
    elif probe is not None:
        mapped = _map_to_transformers(probe, fields, gathered)
    else:
        raise ConfigError(f"{folder}: transformers cannot be asked about the model here")
    dtype = weights_dtype(mapped.tensors)
    mapped = mapped._replace(spec=msgspec.structs.replace(mapped.spec, dtype=dtype))
    method = quantization.method if quantization and gathered.quantised else ""
    return _checkpoint(folder, fields, mapped, tokenizer, _Weights("safetensors", files, method))


def read_dummy(
    folder: Path, tokenizer: TokenizerFiles | None = None, overrides: Mapping[str, Any] | None = None
) -> Checkpoint:
    """The checkpoint of a folder with dummy weights, which are generated at load; the folder needs none.

    Raises:
        ConfigError: a file is missing or damaged, or the model is quantised or of no family.
    """
    fields, has_head, is_classifier = read_model_config(folder, overrides)
    if is_classifier or _logit_score(folder) is not None:
        raise ConfigError(f"{folder} is a classifier, whose head is found by its weights: dummy weights have none")
    config = Config(fields)
    if read_quantization_config(config) is not None:
        raise ConfigError(f"{folder} is quantised, and dummy weights are floats: use that of the unquantised model")
    text = text_model(config)
    family = _family(text, may_be_other=False)
    assert family is not None
    dtypes = [place.text(name) for place in (config, text) for name in ("dtype", "torch_dtype") if name in place]
    dtype = dtypes[0] if dtypes and dtypes[0] in _TYPES else "float32"
    spec = with_dense(family.spec(text), list(_dense_layers(folder).values()))
    spec = msgspec.structs.replace(spec, dtype=dtype)
    mapped = _Mapped(spec, dummy_entries(spec, _TYPES[dtype]), (), has_head and not spec.is_bidirectional)
    checkpoint = _checkpoint(folder, fields, mapped, tokenizer, _Weights("dummy"))
    logger.warning("the weights are made up (load_format dummy): answers mean nothing")
    return checkpoint


class _Mapped(NamedTuple):
    """The spec of a model and the tensors that it takes; without `has_head` it only embeds, or is a `classifier`."""

    spec: ModelSpec
    tensors: tuple[TensorEntry, ...]
    skipped: tuple[str, ...]
    has_head: bool
    classifier: EmbeddingSpec | None = None


class _Weights(NamedTuple):
    """The format of a checkpoint's weights, their files and the method of their quantization."""

    format: Literal["safetensors", "dummy"]
    files: tuple[str, ...] = ()
    quantization: str = ""


def _map_to_family(
    names: TensorNames, spec: ModelSpec, gathered: Gathered, files: Sequence[str], has_head: bool
) -> _Mapped:
    names = replace(names, derived=names.derived + gathered.no_biases)
    has_head = has_head or spec.tie_word_embeddings or has_own_head(names, gathered.tensors)
    has_head = has_head and not (spec.is_bidirectional or spec.is_classifier)
    spec = _with_own_head(spec, names, gathered, files) if has_head else without_head(spec)
    try:
        return _Mapped(spec, *map_tensors(spec, names, gathered.tensors, gathered.quantised), has_head)
    except MissingTensorError as error:
        if unread := unread_files(files):
            raise ConfigError(f"{error}; not read beside them: {', '.join(unread)}") from None
        raise


def _map_to_transformers(probe: Probe, fields: Mapping[str, Any], gathered: Gathered) -> _Mapped:
    shapes = {found.name: found.shape for found in gathered.tensors if found.name not in gathered.no_biases}
    probed = probe(ProbeRequest(config=json.dumps(fields), tensors=shapes))
    entries = map_probed(probed, gathered.tensors, gathered.quantised)
    return _Mapped(probed.spec, entries, probed.skipped, has_head=True)  # The probe has computed logits.


def _checkpoint(
    folder: Path, fields: Mapping[str, Any], mapped: _Mapped, tokenizer: TokenizerFiles | None, weights: _Weights
) -> Checkpoint:
    """The checkpoint of a mapped model, with what the other files of its folder say."""
    tokenizer = tokenizer or read_huggingface_tokenizer(folder)
    check_vocabulary(tokenizer, mapped.spec)
    sampling, ends = _generation(folder, Config(fields))
    embedding = mapped.classifier or _embedding(folder, fields, mapped.spec.is_bidirectional)
    if not mapped.has_head:
        embedding = msgspec.structs.replace(embedding, is_only_use=True, is_main_use=True)
    return Checkpoint(
        name=folder.name,
        format=weights.format,
        files=weights.files,
        spec=mapped.spec,
        tensors=mapped.tensors,
        tokenizer=tokenizer.with_ends(ends, mapped.spec),
        fingerprint=weights_fingerprint(weights.files, mapped.tensors),
        sampling=sampling,
        embedding=embedding,
        skipped=mapped.skipped,
        quantization=weights.quantization,
    )


def _family(config: Config, may_be_other: bool) -> Family | None:
    """The family that computes a model; None if transformers is to be asked (`may_be_other`)."""
    try:
        if "architectures" not in config:
            raise UnknownArchitectureError(
                f"config.json names no architecture, and none of its model_type {config.text('model_type', '')!r} is "
                'known: name one by --hf-overrides \'{"architectures": ["LlamaForCausalLM"]}\''
            )
        family = find_family(str(config.items("architectures", 1)[0]))
        family.spec(config)
        return family
    except UnsupportedFeatureError as error:
        if not may_be_other:
            raise
        logger.info("%s: so transformers computes the model", error)
        return None
    except UnknownArchitectureError:
        if may_be_other:  # transformers may know the architecture, or the model type
            return None
        raise


class _Asked(NamedTuple):
    """The question to a text model about a pair of texts: its tokens by the files, or those of a known reranker."""

    score: LogitScoreConfig | None
    reranker: Reranker | None


def _asked(folder: Path, family: Family) -> _Asked | None:
    """The question to a text model; None where it generates text. In older downloads only the folder's name tells."""
    parts = folder.parts
    in_cache = parts[-2:-1] == ("snapshots",)  # models--OWNER--NAME/snapshots/COMMIT, in the cache of the hub
    name = (parts[-3] if in_cache else folder.name).lower().replace("_", "-")
    reranker = family.reranker if family.reranker is not None and family.reranker.name in name else None
    score = _logit_score(folder)
    return None if score is None and reranker is None else _Asked(score, reranker)


def _logit_score(folder: Path) -> LogitScoreConfig | None:
    path = next((module.path for module in _modules(folder) if module.name == "LogitScore"), None)
    return None if path is None else read_json(folder / path / "config.json", LogitScoreConfig)


def _read_head(
    folder: Path,
    fields: Mapping[str, Any],
    asked: _Asked | None,
    spec: ModelSpec,
    tokenizer: TokenizerFiles,
    *,
    tensors: list[FileTensor],
) -> tuple[ClassifierHead, EmbeddingSpec]:
    """The head of a classifier, or of a text model that is `asked`, and the settings of its scores."""
    classes = classifier_config(fields, read_json(folder / CROSS_ENCODER_CONFIG, dict[str, Any], optional=True))
    if answers := _answers(folder, asked, classes.classifier_from_token, tokenizer):
        head = head_of_tokens(spec, answers, tensors)
    else:
        head = find_head(tensors, classes.norm_eps, spec.architecture.startswith("Electra"))
    variables = read_json(
        folder / SENTENCE_BERT_CONFIG, TransformerConfig, optional=True
    ).processing_kwargs.chat_template
    template = None if asked is None or asked.reranker is None else asked.reranker.template
    embedding = classifier_spec(classes, head, template)
    return head, msgspec.structs.replace(embedding, pair_variables=variables)


def _answers(
    folder: Path, asked: _Asked | None, given: Sequence[str] | None, tokenizer: TokenizerFiles
) -> dict[int, str]:
    """The tokens with which a text model answers, that for relevant documents last; none where it has a head.

    Without a question the `given` words are the answers, if there are any.
    """
    words = given if asked is None else asked.reranker and asked.reranker.words
    score = None if asked is None else asked.score
    if not words and score is None:
        return {}
    ids = read_vocabulary(tokenizer)
    if score is not None:
        spellings = {index: token for token, index in ids.items()}
        answers = [(token, spellings.get(token, str(token))) for token in score.tokens]
    elif missing := [word for word in words or () if word not in ids]:
        raise ConfigError(f"{folder}: the tokenizer has no token {missing[0]!r}, with which the model answers")
    else:
        answers = [(ids[word], word) for word in words or ()]
    found = dict(answers)
    if len(found) < len(answers):
        raise ConfigError(f"{folder}: the token {answers[0][0]} is for relevant documents and for others")
    return found


def _with_own_head(spec: ModelSpec, names: TensorNames, gathered: Gathered, files: Sequence[str]) -> ModelSpec:
    """The spec with its own head if that differs from the embedding, whatever config.json says, as in transformers."""
    if (both := tied_matrices(spec, names, gathered.tensors)) is None:
        return spec
    embedding, head = both
    is_quantised = bool({embedding.name, head.name} & gathered.quantised.keys())
    if not is_quantised and have_same_content(embedding, head, files):
        return spec
    logger.warning(
        "config.json says tie_word_embeddings, but %s %s %s: each is used in its place",
        head.name,
        "is quantised apart from" if is_quantised else "differs from",
        embedding.name,
    )
    return msgspec.structs.replace(spec, tie_word_embeddings=False)


def read_generation_config(path: Path) -> tuple[SamplingDefaults, tuple[int, ...] | None]:
    """The sampling defaults and end tokens (None if not given) in a generation_config.json; `path` may be its folder.

    Raises:
        ConfigError: the file is missing or damaged.
    """
    path = path / GENERATION_CONFIG if path.is_dir() else path
    config = Config(read_json(path, dict[str, Any]), str(path))
    return sampling_defaults(config), end_token_ids(config)


def _generation(folder: Path, config: Config) -> tuple[SamplingDefaults, tuple[int, ...]]:
    """The sampling defaults and end tokens of a folder; the latter are in generation_config.json or config.json."""
    path, sampling, ends = folder / GENERATION_CONFIG, SamplingDefaults(), None
    if path.is_file():
        sampling, ends = read_generation_config(path)
    if ends is None:
        ends = end_token_ids(config) or end_token_ids(config.section("text_config")) or ()
    return sampling, ends


def _modules(folder: Path) -> list[Module]:
    path = folder / "modules.json"
    return read_json(path, list[Module]) if path.is_file() else []


def _dense_layers(folder: Path) -> dict[Path, DenseSpec]:
    """The layers after pooling, by the folders of their modules."""
    folders = [folder / module.path for module in _modules(folder) if module.name == "Dense"]
    return {path: read_json(path / "config.json", DenseConfig).spec() for path in folders}


def _gather_dense(folders: Iterable[Path], gathered: Gathered, num_files: int) -> tuple[str, ...]:
    """Add the tensors of layers after pooling, by llama.cpp's names; returns their files, after `num_files` others."""
    files: list[str] = []
    for index, folder in enumerate(folders):
        path = folder / WEIGHTS
        if not path.is_file():
            raise ConfigError(f"there is no {path}; {CONVERT}")
        for tensor in read_file(path, num_files + index):
            name = dense_tensor(f"{index}.{tensor.name.removeprefix('linear.')}")
            gathered.tensors.append(msgspec.structs.replace(tensor, name=name))
        files.append(str(path))
    return tuple(files)


def _embedding(folder: Path, fields: Mapping[str, Any], is_encoder: bool) -> EmbeddingSpec:
    try:
        matryoshka = msgspec.convert(fields, MatryoshkaConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {error}") from None
    modules = _modules(folder)
    pooling = next((module.path for module in modules if module.name == "Pooling"), "1_Pooling")
    return embedding_spec(
        modules,
        read_json(folder / SENTENCE_BERT_CONFIG, TransformerConfig, optional=True),
        read_json(folder / pooling / "config.json", PoolingConfig, optional=True),
        matryoshka,
        is_encoder,
    )
