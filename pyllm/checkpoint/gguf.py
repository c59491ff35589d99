"""Reads a GGUF header: architecture, tensor table, tokenizer. Does not read weights (`workers/loaders/gguf.py`).

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np

from pyllm.checkpoint.embedding_config import EmbeddingSpec, gguf_embedding_spec
from pyllm.checkpoint.generation_config import GGUF_FIELDS, sampling_defaults
from pyllm.checkpoint.gguf_config import PLACE, ROPE_FACTORS, gguf_config
from pyllm.checkpoint.gguf_tokenizer import end_tokens, tokenizer_json
from pyllm.checkpoint.types import Checkpoint, TokenizerFiles, check_vocabulary, weights_dtype, weights_fingerprint
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.registry import find_gguf_family
from pyllm.families.tensors import FileTensor, map_tensors

Fields = Mapping[str, Any]


def read_gguf(path: Path, tokenizer: str | TokenizerFiles) -> tuple[Checkpoint, bytes]:
    """The checkpoint, and the content that belongs at the path `tokenizer`. Takes about two seconds.

    The content is empty if `tokenizer` is another one, which replaces the file's own.

    Raises:
        ConfigError: the file is damaged, or its architecture, tensors, types or tokenizer are not supported.
    """
    try:
        reader = _Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, OSError) as error:
        raise ConfigError(f"{path} is not a GGUF file that can be read: {error}") from error
    if (parts := Config(fields, PLACE).integer("split.count", 1, least=0)) > 1:
        raise ConfigError(f"{path} is one of {parts} parts; merge them with `llama-gguf-split --merge`")
    family = find_gguf_family(str(fields.get("general.architecture")))
    assert family.gguf is not None
    factors = {tensor.name: _numbers(tensor) for tensor in reader.tensors if tensor.name in ROPE_FACTORS}
    tensors = [_entry(tensor) for tensor in reader.tensors]
    config = gguf_config(family, fields, {tensor.name: tensor.shape for tensor in tensors}, factors)
    spec = msgspec.structs.replace(family.read(config), dtype=weights_dtype(tensors))
    entries, skipped = map_tensors(spec, family.gguf.tensors, tensors)
    files = (str(path),)
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
        tokenizer=tokenizer,
        fingerprint=weights_fingerprint(files, [entry.source for entry in entries]),
        sampling=sampling_defaults(Config(fields, PLACE), GGUF_FIELDS),
        embedding=_embedding(fields),
        skipped=skipped,
    )
    return checkpoint, content


class _Reader(gguf.GGUFReader):
    """The package's, which would read arrays beyond the end of the file, for hours; no field has an array of arrays."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == gguf.GGUFValueType.ARRAY:
            if self._get(orig_offs, np.uint32)[0] == gguf.GGUFValueType.ARRAY:
                raise ValueError("a field is an array of arrays")
            count = int(self._get(orig_offs + 4, np.uint64)[0])
            if count > len(self.data) - orig_offs:
                raise ValueError(f"a field has {count} elements in a file of {len(self.data)} bytes")
        return super()._get_field_parts(orig_offs, raw_type)


def _embedding(fields: Fields) -> EmbeddingSpec:
    field = f"{fields['general.architecture']}.pooling_type"
    return gguf_embedding_spec(Config(fields, PLACE).integer(field, 0, least=0))


def _numbers(tensor: Any) -> list[float]:
    """The values of a small tensor that belongs to the configuration."""
    if tensor.tensor_type is not gguf.GGMLQuantizationType.F32:
        raise ConfigError(f"tensor {tensor.name!r} has type {tensor.tensor_type.name}, and must be F32")
    numbers: list[float] = tensor.data.tolist()
    return numbers


def _entry(tensor: Any) -> FileTensor:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    shape = tuple(int(size) for size in reversed(tensor.shape))
    try:
        gguf.quants.dequantize(np.zeros((1, block_bytes), np.uint8), tensor.tensor_type)
    except NotImplementedError:
        raise ConfigError(
            f"tensor {tensor.name!r} has type {tensor.tensor_type.name}, which is not supported"
        ) from None
    if shape[-1] % block_size:
        raise ConfigError(f"tensor {tensor.name!r}: rows of {shape[-1]} do not fill blocks of {block_size}")
    return FileTensor(tensor.name, tensor.tensor_type.name, shape, 0, int(tensor.data_offset), int(tensor.n_bytes))


def _tokenizer(fields: Fields, path: str) -> TokenizerFiles:
    config, tokens = Config(fields, PLACE), fields["tokenizer.ggml.tokens"]
    ids = {}
    for name in ("bos", "eos", "eot", "eom"):
        field = f"tokenizer.ggml.{name}_token_id"
        if field in config:
            ids[name] = config.integer(field, least=0)
            if ids[name] >= len(tokens):
                raise ConfigError(f"{field} is {ids[name]}, of {len(tokens)} tokens")
    template = config.text("tokenizer.chat_template") if "tokenizer.chat_template" in config else None
    ends = {ids[name] for name in ("eos", "eot", "eom") if name in ids} | end_tokens(tokens, template or "")
    return TokenizerFiles(
        path=path,
        chat_template=template,
        bos_token=tokens[ids["bos"]] if "bos" in ids else "",
        eos_token=tokens[ids["eos"]] if "eos" in ids else "",
        eos_token_ids=tuple(sorted(ends)),
        num_tokens=len(tokens),
    )
