"""A tiny random Llama as a Hugging Face folder, made without torch, transformers or a network."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

END = "<|end|>"
START = "<|start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny_model(
    folder: Path,
    *,
    heads: int = 6,
    kv_heads: int = 3,
    head_dim: int = 16,
    layers: int = 2,
    hidden_size: int = 48,
    intermediate_size: int = 96,
    vocab_size: int = 290,
    max_position_embeddings: int = 512,
    tied: bool = True,
    seed: int = 0,
    **config: Any,
) -> str:
    """Write config.json, model.safetensors (float32) and a byte-level tokenizer; gives the folder as a string.

    `config` adds to or replaces fields of config.json. The weights are large enough that logits differ clearly.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (generator.standard_normal((rows, columns)) * 2.0 / math.sqrt(columns)).astype(np.float32)

    def scale() -> np.ndarray:
        return generator.uniform(0.5, 1.5, hidden_size).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocab_size, hidden_size), "model.norm.weight": scale()}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": scale(),
            f"{prefix}.self_attn.q_proj.weight": matrix(heads * head_dim, hidden_size),
            f"{prefix}.self_attn.k_proj.weight": matrix(kv_heads * head_dim, hidden_size),
            f"{prefix}.self_attn.v_proj.weight": matrix(kv_heads * head_dim, hidden_size),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden_size, heads * head_dim),
            f"{prefix}.post_attention_layernorm.weight": scale(),
            f"{prefix}.mlp.gate_proj.weight": matrix(intermediate_size, hidden_size),
            f"{prefix}.mlp.up_proj.weight": matrix(intermediate_size, hidden_size),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden_size, intermediate_size),
        }
    if not tied:
        tensors["lm_head.weight"] = matrix(vocab_size, hidden_size)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": tied,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "dtype": "float32",
    }
    _write(folder / "config.json", fields | config)
    _write(folder / "generation_config.json", {"eos_token_id": [257]})
    # A tokenizer with far fewer tokens than the embedding has rows would be another model's.
    write_tokenizer(folder, num_tokens=vocab_size * 7 // 8)
    return str(folder)


def write_tokenizer(folder: Path, merges: Sequence[str] = (), num_tokens: int = 0) -> None:
    """Write a byte-level tokenizer of 256 bytes, two special tokens, 256 and 257, and merges, with a chat template.

    It has at least `num_tokens`; those that fill it up come out of no text.
    """
    tokens = [*_byte_alphabet(), START, END, *("".join(merge.split()) for merge in merges)]
    tokens += [f"<unused {index}>" for index in range(len(tokens), num_tokens)]
    _write(folder / "tokenizer.json", _tokenizer(tokens, merges))
    _write(
        folder / "tokenizer_config.json",
        {
            "bos_token": START,
            "eos_token": END,
            "chat_template": CHAT_TEMPLATE,
            "tokenizer_class": "PreTrainedTokenizer",
        },
    )


def _byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes with, in the order of the bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _tokenizer(tokens: list[str], merges: Sequence[str]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for index, token in enumerate(tokens)
        if token in (START, END)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": list(merges)},
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
