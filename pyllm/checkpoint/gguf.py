"""Reads a GGUF header: architecture, tensor table, tokenizer. Does not read weights (`workers/loaders/gguf.py`).

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np

from pyllm.checkpoint.gguf_tokenizer import tokenizer_json
from pyllm.checkpoint.types import (
    Architecture,
    Checkpoint,
    TensorEntry,
    TokenizerFiles,
    weights_dtype,
    weights_fingerprint,
)
from pyllm.errors import ConfigError

_ARCHITECTURES = {"llama": "LlamaForCausalLM"}

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Fields = Mapping[str, Any]


def read_gguf(path: Path, tokenizer_path: str) -> tuple[Checkpoint, bytes]:
    """The checkpoint, and the content that belongs at `tokenizer_path`. Takes about two seconds.

    Raises:
        ConfigError: the file is damaged, or its architecture, tensors, types or tokenizer are not supported.
    """
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, struct.error, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} is not a GGUF file that can be read: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("split.count", 1) > 1:
        raise ConfigError(f"{path} is one of {fields['split.count']} parts; merge them with `llama-gguf-split --merge`")
    tensors = tuple(_entry(tensor) for tensor in reader.tensors)
    files = (str(path),)
    tokenizer = tokenizer_json(fields)
    checkpoint = Checkpoint(
        name=path.stem,
        format="gguf",
        files=files,
        architecture=_architecture(fields, tensors),
        tensors=tensors,
        tokenizer=_tokenizer(fields, tokenizer_path),
        fingerprint=weights_fingerprint(files, tensors),
    )
    return checkpoint, tokenizer


def huggingface_name(name: str) -> str:
    """The name that transformers gives to a tensor of llama.cpp's naming.

    Raises:
        ConfigError: the tensor belongs to a feature that is not supported, such as rope_freqs.weight (RoPE scaling).
    """
    if name in _NAMES:
        return _NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ConfigError(f"the GGUF file has a tensor {name!r}, which belongs to a feature that is not supported")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def _entry(tensor: Any) -> TensorEntry:
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
    return TensorEntry(
        huggingface_name(tensor.name), tensor.tensor_type.name, shape, 0, int(tensor.data_offset), int(tensor.n_bytes)
    )


def _architecture(fields: Fields, tensors: tuple[TensorEntry, ...]) -> Architecture:
    family = fields.get("general.architecture")
    if family not in _ARCHITECTURES:
        raise ConfigError(f"GGUF architecture {family!r} is not supported; supported: {', '.join(_ARCHITECTURES)}")

    def field(name: str, default: Any = None) -> Any:
        value = fields.get(f"{family}.{name}", default)
        if value is None:
            raise ConfigError(f"the GGUF file has no field {family}.{name}")
        return value

    hidden_size, num_heads = field("embedding_length"), field("attention.head_count")
    if isinstance(num_heads, list):
        raise ConfigError(f"{family}.attention.head_count differs between layers, which is not supported")
    head_dim = field("attention.key_length", hidden_size // num_heads)
    for name, neutral in (
        ("expert_count", 0),
        ("rope.scaling.type", "none"),
        ("rope.scale_linear", 1.0),
        ("rope.dimension_count", head_dim),
        ("attention.value_length", head_dim),
        ("attention.sliding_window", 0),
    ):
        if field(name, neutral) != neutral:
            raise ConfigError(f"{family}.{name} = {field(name)} is not supported, only {neutral}")
    shapes = {entry.name: entry.shape for entry in tensors}
    if "model.embed_tokens.weight" not in shapes:
        raise ConfigError("the GGUF file has no tensor token_embd.weight")
    found = {
        "architecture": _ARCHITECTURES[family],
        "vocab_size": shapes["model.embed_tokens.weight"][0],
        "hidden_size": hidden_size,
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": field("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base", 10_000.0),
        "max_position_embeddings": field("context_length"),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "dtype": weights_dtype(tensors),
    }
    try:
        return msgspec.convert(found, Architecture)
    except msgspec.ValidationError as error:  # Some models have lists here, a number for each layer.
        raise ConfigError(f"the GGUF file's architecture is not supported: {error}") from error


def _tokenizer(fields: Fields, path: str) -> TokenizerFiles:
    tokens = fields.get("tokenizer.ggml.tokens", [])
    ids = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")}
    for name, token in ids.items():
        if token is not None and not 0 <= token < len(tokens):
            raise ConfigError(f"tokenizer.ggml.{name}_token_id is {token}, of {len(tokens)} tokens")
    return TokenizerFiles(
        path=path,
        chat_template=fields.get("tokenizer.chat_template"),
        bos_token="" if ids["bos"] is None else tokens[ids["bos"]],
        eos_token="" if ids["eos"] is None else tokens[ids["eos"]],
        eos_token_ids=tuple(sorted({token for token in (ids["eos"], ids["eot"]) if token is not None})),
    )
