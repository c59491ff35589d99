"""Makes a checkpoint of a GGUF header: model, tensors, tokenizer. Does not read weights (`workers/loaders/gguf.py`)."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyllm.checkpoint.generation_config import GGUF_FIELDS, sampling_defaults
from pyllm.checkpoint.gguf_config import PLACE, ROPE_FACTORS, gguf_config
from pyllm.checkpoint.gguf_header import read_header
from pyllm.checkpoint.pooling.classifier_head import (
    ClassifierHead,
    find_head,
    gguf_classifier_spec,
    is_gguf_classifier,
    with_head,
)
from pyllm.checkpoint.pooling.embedding_config import EmbeddingSpec, gguf_dense, gguf_embedding_spec, with_dense
from pyllm.checkpoint.types import (
    Checkpoint,
    TokenizerFiles,
    check_vocabulary,
    read_tensor,
    weights_dtype,
    weights_fingerprint,
)
from pyllm.checkpoint.vocabularies.gguf_tokenizer import end_tokens, special_ids, tokenizer_json
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.registry import find_gguf_family
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_map import map_tensors, without_head
from pyllm.families.tensors import FileTensor

Fields = Mapping[str, Any]


def read_gguf(path: Path, tokenizer: str | TokenizerFiles) -> tuple[Checkpoint, bytes]:
    """The checkpoint in a GGUF file, and the tokenizer.json to write at the path `tokenizer`.

    The latter is empty if `tokenizer` is a `TokenizerFiles`, which replaces the file's own tokenizer.

    Raises:
        ConfigError: the file is damaged, or its architecture, tensors, types or tokenizer are not supported.
    """
    fields, tensors, files = read_header(path)
    if fields.get("general.type") == "adapter":
        raise ConfigError(f"{path} is a LoRA adapter, not supported by itself: give a GGUF of the merged model")
    family = find_gguf_family(str(fields.get("general.architecture")))
    assert family.gguf is not None
    factors = {tensor.name: _numbers(tensor, files) for tensor in tensors if tensor.name in ROPE_FACTORS}
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    config = gguf_config(family, fields, shapes, factors)
    spec, head = family.spec(config), None
    if is_gguf_classifier(fields, shapes):
        head = find_head(tensors, config.positive("layer_norm_eps", 1e-5))
        tensors = head.tensors
        spec = without_head(with_head(spec, head))
    elif spec.is_bidirectional:
        spec = with_dense(spec, gguf_dense(shapes))
    entries, skipped = map_tensors(spec, family.gguf.tensors, tensors)
    spec = msgspec.structs.replace(spec, dtype=weights_dtype(entries))
    content = b""
    if isinstance(tokenizer, str):
        content, tokenizer = tokenizer_json(fields), _tokenizer(fields, tokenizer)
        if tokenizer.num_tokens != spec.vocab_size:
            raise ConfigError(
                f"{path} has {tokenizer.num_tokens} tokens and an embedding of {spec.vocab_size} rows: it is damaged"
            )
    check_vocabulary(tokenizer, spec)
    checkpoint = Checkpoint(
        name=path.stem,
        format="gguf",
        files=files,
        spec=spec,
        tensors=entries,
        tokenizer=tokenizer.with_ends(_ends(fields), spec),
        fingerprint=weights_fingerprint(files, entries),
        sampling=sampling_defaults(Config(fields, PLACE), GGUF_FIELDS),
        embedding=_embedding(fields, spec, head),
        skipped=skipped,
    )
    return checkpoint, content


def _embedding(fields: Fields, spec: ModelSpec, head: ClassifierHead | None) -> EmbeddingSpec:
    architecture = fields["general.architecture"]
    own = Config({name.removeprefix(f"{architecture}."): value for name, value in fields.items()}, PLACE)
    if head is not None:
        return gguf_classifier_spec(own, head, spec.is_bidirectional, has_mean=architecture == "modern-bert")
    return gguf_embedding_spec(own.integer("pooling_type", 0, least=0), spec.is_bidirectional)


def _ends(fields: Fields) -> list[int]:
    """The end tokens that the file names; a tokenizer that replaces its own may not have them."""
    named = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return [index for index in named if isinstance(index, int)]


def _numbers(tensor: FileTensor, files: Sequence[str]) -> list[float]:
    """The values of a small tensor that is part of the configuration."""
    if tensor.type != "F32":
        raise ConfigError(f"tensor {tensor.name!r} has type {tensor.type}, and must be F32")
    return list(struct.unpack(f"<{tensor.num_bytes // 4}f", read_tensor(tensor, files)))


def _tokenizer(fields: Fields, path: str) -> TokenizerFiles:
    config, tokens = Config(fields, PLACE), fields["tokenizer.ggml.tokens"]
    ids = special_ids(fields)
    template, tool_template = (
        config.text(name) if name in config else None
        for name in ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")
    )
    ends = {ids[name] for name in ("eos", "eot", "eom") if name in ids} | end_tokens(tokens, template or "")
    return TokenizerFiles(
        path=path,
        chat_template=template,
        tool_chat_template=tool_template,
        bos_token=tokens[ids["bos"]] if "bos" in ids else "",
        eos_token=tokens[ids["eos"]] if "eos" in ids else "",
        eos_token_ids=tuple(sorted(ends)),
        own_ends=tuple(sorted(ends)),
        num_tokens=len(tokens),
    )
