"""The tiny model of `tiny_model.py`, or a tiny gpt-oss, as a GGUF file, as llama.cpp's converter would write it."""

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
    metadata = _tokenizer(folder, config, _MERGES) | {
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
        writer.add_tensor(_llama_cpp_name(name), _quantised(matrix, kind), raw_dtype=kind)
    for name in extra_tensors:
        writer.add_tensor(name, np.ones(config["head_dim"] // 2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def _quantised(matrix: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The matrix in blocks; for IQ types, which the gguf package does not make, random ones of a small scale."""
    if not kind.name.startswith("IQ"):
        return gguf.quants.quantize(matrix, kind)
    features, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    shape = (len(matrix), matrix.shape[1] // features, block_bytes)
    blocks = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    blocks[..., :2] = np.array([0.01], np.float16).view(np.uint8)
    return blocks.reshape(len(matrix), -1)


def write_gpt_oss_gguf(
    source: str, path: Path, experts: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> str:
    """Write a folder of gpt-oss with float weights as a GGUF file; its experts are stored as `experts`.

    The tensors' names are those that the gguf package maps transformers' to.
    """
    folder = Path(source)
    config = json.loads((folder / "config.json").read_text())
    rope, layers = config["rope_parameters"], config["num_hidden_layers"]
    metadata = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.type": rope["rope_type"],
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }
    writer = gguf.GGUFWriter(path, "gpt-oss")
    for name, value in metadata.items():
        _add(writer, f"gpt-oss.{name}", value)
    for name, value in _tokenizer(folder, config, ()).items():
        _add(writer, name, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, layers)
    for name, tensor in load_file(folder / "model.safetensors").items():
        for part_name, part in _parts_of_experts(name, tensor.astype(np.float32)):
            mapped = names.get_name(part_name, try_suffixes=(".weight", ".bias"))
            assert mapped is not None, part_name
            kind = experts if "_exps.weight" in mapped else gguf.GGMLQuantizationType.F32
            writer.add_tensor(mapped, gguf.quants.quantize(np.ascontiguousarray(part), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def _parts_of_experts(name: str, tensor: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The tensor under the name that the gguf package knows; of a gate and an up in one, both."""
    module, _, kind = name.rpartition(".")
    if kind == "sinks":
        return [(f"{name}.weight", tensor)]
    if not module.endswith(".experts"):
        return [(name, tensor)]
    ending = "bias" if kind.endswith("_bias") else "weight"
    rows = tensor if ending == "bias" else tensor.swapaxes(1, 2)
    if kind.startswith("down_proj"):
        return [(f"{module}.down_proj.{ending}", rows)]
    return [(f"{module}.{part}_proj.{ending}", rows[:, first::2]) for first, part in enumerate(("gate", "up"))]


def _tokenizer(folder: Path, config: dict[str, Any], more_merges: tuple[str, ...]) -> dict[str, Any]:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = [*model["vocab"], *("".join(merge.split()) for merge in more_merges)]
    tokens += [f"[PAD{index}]" for index in range(len(tokens), config["vocab_size"])]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL if token.startswith("<|") else _NORMAL for token in tokens],
        "tokenizer.ggml.merges": [*model["merges"], *more_merges],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


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
