"""The tiny model of `tiny_model.py` as a GGUF file, as llama.cpp's converter would write it."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

_CONTROL, _NORMAL = 3, 1
_MERGES = ("Ġ t", "h e", "Ġt he")


def write_tiny_gguf(
    source: str,
    path: Path,
    *,
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    fields: dict[str, Any] | None = None,
    extra_tensors: tuple[str, ...] = (),
) -> str:
    """Write a Hugging Face folder made by `write_tiny_model` as a GGUF file; gives its path.

    Matrices are stored as `quantisation`. `fields` adds or replaces metadata; a value of None leaves a field out.
    """
    folder = Path(source)
    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [*vocabulary, *("".join(merge.split()) for merge in _MERGES)]
    tokens += [f"[PAD{index}]" for index in range(len(tokens), config["vocab_size"])]
    metadata = {
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL if token.startswith("<|") else _NORMAL for token in tokens],
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (metadata | (fields or {})).items():
        _add(writer, name, value)
    for name, tensor in load_file(folder / "model.safetensors").items():
        matrix = tensor
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = tensor.reshape(-1, 2, config["head_dim"] // 2, tensor.shape[-1])
            matrix = halves.swapaxes(1, 2).reshape(tensor.shape)
        kind = quantisation if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_llama_cpp_name(name), gguf.quants.quantize(matrix, kind), raw_dtype=kind)
    for name in extra_tensors:
        writer.add_tensor(name, np.ones(config["head_dim"] // 2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def _llama_cpp_name(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for theirs, ours in parts.items():
        name = name.replace(theirs, ours)
    return name


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case list():
            writer.add_array(name, value)
