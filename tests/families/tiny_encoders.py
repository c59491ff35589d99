"""A tiny random encoder of each kind, written by transformers."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from pyllm_kernels.tensors import Array
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from tests.tiny_model import write_tokenizer

CONTEXT = 128
SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
ROBERTA = {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1}
MODERN_BERT = {"num_hidden_layers": 4, "local_attention": 32, "pad_token_id": 0}
_OLDER_MODERN_BERT = {"global_attn_every_n_layers": 2, "global_rope_theta": 5000.0, "local_rope_theta": 100.0}
_OTHER_MODERN_BERT = _OLDER_MODERN_BERT | {
    "hidden_activation": "silu",
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
}
_EMBEDDING_GEMMA = {
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,  # as llama.cpp derives it
    "sliding_window": 32,
    "use_bidirectional_attention": True,
}
DENSE: dict[str, list[tuple[int, bool, str]]] = {
    "embedding-gemma-dense": [(96, False, "Identity"), (32, False, "Identity")],
    "bert-dense": [(40, True, "Identity"), (24, True, "Tanh"), (16, False, "Tanh")],
}
"""Layers after pooling: their numbers of outputs, whether they have biases, and their activations in torch.nn."""
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert-masked": ("Bert", {}),
    "bert-relu": ("Bert", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "roberta": ("Roberta", ROBERTA | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", ROBERTA | {"type_vocab_size": 1}),
    "camembert": ("Camembert", ROBERTA),
    "electra": ("Electra", {"embedding_size": 32}),
    "distilbert": ("DistilBert", {"hidden_dim": 48}),
    "mpnet": ("MPNet", ROBERTA),
    "gte": ("Gte", {}),
    "gte-authors": (
        "Gte",
        {"rope_parameters": {"rope_type": "linear", "factor": 8 ** (1 / 4), "rope_theta": 160000.0}},
    ),
    "nomic-bert": ("NomicBert", {}),
    "modernbert": ("ModernBert", MODERN_BERT),
    "modernbert-older": ("ModernBert", MODERN_BERT | _OTHER_MODERN_BERT),
    "eurobert": ("EuroBert", {"num_key_value_heads": 2, "pad_token_id": 1, "classifier_pooling": "mean"}),
    "embedding-gemma": ("Gemma3Text", _EMBEDDING_GEMMA),
    "embedding-gemma-dense": ("Gemma3Text", _EMBEDDING_GEMMA),
    "bert-dense": ("Bert", {}),
    "qwen2-bidirectional": ("Qwen2", {"num_key_value_heads": 2, "is_causal": False}),
    "llama-embed": ("Llama", {"num_key_value_heads": 2, "is_causal": False}),
}
"""Transformers' class without `Model`, and what its config.json has beside the sizes."""
LIKE_OTHERS = {"bert-relu", "roberta", "camembert", "electra", "embedding-gemma", "llama-embed"}
_MASKED = {
    "bert-masked",
    "modernbert-older",
    "distilbert",
    "gte",
}  # written with a head for masked tokens, as base models are
_PUBLISHED: dict[str, dict[str, Any]] = {
    "nomic-bert": {
        **dict.fromkeys(
            ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "layer_norm_eps")
        ),
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 48,
        "layer_norm_epsilon": 1e-12,
        "hidden_act": None,
        "max_position_embeddings": None,
        "n_positions": 8192,
        "max_trained_positions": CONTEXT,
        "rope_parameters": None,
        "rotary_emb_base": 1000,
        "activation_function": "swiglu",
        "prenorm": False,
    },
    "gte-authors": {
        "architectures": ["NewModel"],
        "rope_parameters": None,
        "rope_theta": 20000,
        "rope_scaling": {"type": "ntk", "factor": 8.0},
    },
    "modernbert-older": {"rope_parameters": None, "layer_types": None} | _OLDER_MODERN_BERT,
    "llama-embed": {"architectures": ["LlamaBidirectionalModel"], "is_causal": None, "pooling": "avg"},
}
"""The fields of a published config.json in place of transformers' own; None: it lacks the field."""


@functools.cache
def encoder(name: str) -> PreTrainedModel:
    """The model, in float32; its numbers are large enough that each changes the result."""
    kind, fields = ENCODERS[name]
    torch.manual_seed(len(name))
    return with_large_numbers(
        getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**SIZES | fields))
    )


def with_large_numbers(model: PreTrainedModel) -> PreTrainedModel:
    """The model, with random numbers so large that each changes the result, and as in the GGUF files."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            number = noise * 0.2 if parameter.ndim > 1 else parameter + noise * 0.2
            parameter.copy_(number.half())
    return model


@functools.cache
def dense(name: str) -> list[tuple[nn.Linear, nn.Module]]:
    """The layers after pooling, in float64."""
    torch.manual_seed(len(name))
    layers, size = [], SIZES["hidden_size"]
    for features, bias, activation in DENSE.get(name, []):
        linear = nn.Linear(size, features, bias).requires_grad_(False)
        layers.append((linear.half().double(), getattr(nn, activation)()))
        size = features
    return layers


@torch.inference_mode()
def expected(name: str, prompt: Sequence[int], pooling: str) -> Array:
    """The embedding by transformers, pooled by `mean` or `cls`: float64 [features], of length 1."""
    states = encoder(name)(torch.tensor([prompt])).last_hidden_state[0].double()
    vector = states.mean(dim=0) if pooling == "mean" else states[0]
    for linear, activation in dense(name):
        vector = activation(linear(vector))
    found: Array = (vector / vector.norm()).numpy()
    return found


def write_tiny_encoder(folder: Path, name: str, pooling: str = "mean") -> str:
    """Write the model, a byte-level tokenizer and the pooling; gives the folder as a string."""
    model = encoder(name)
    if name in _MASKED:
        masked = getattr(transformers, f"{ENCODERS[name][0]}ForMaskedLM")(model.config)
        masked.base_model.load_state_dict(model.state_dict(), strict=False)
        model = masked
    model.save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text()) | _PUBLISHED.get(name, {})
    published = {field: value for field, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(published))
    write_tokenizer(folder, merges=["Ġ t", "h e", "i n", "a n"])
    (folder / "1_Pooling").mkdir(parents=True)
    mode = {"mean": "mean_tokens", "cls": "cls_token"}[pooling]
    (folder / "1_Pooling/config.json").write_text(f'{{"pooling_mode_{mode}": true}}')
    write_dense(folder, name)
    return str(folder)


class _Writer:
    """Makes the tensors of a model's parts, of random numbers."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def matrix(self, *shape: int) -> np.ndarray:
        return (self._generator.standard_normal(shape) * 0.2).astype(np.float16).astype(np.float32)

    def linear(self, name: str, rows: int, columns: int) -> dict[str, np.ndarray]:
        return {f"{name}.weight": self.matrix(rows, columns), f"{name}.bias": self.matrix(rows)}

    def norm(self, name: str, size: int) -> dict[str, np.ndarray]:
        return {f"{name}.weight": 1 + self.matrix(size), f"{name}.bias": self.matrix(size)}


def write_jina(folder: Path) -> str:
    """Write a model of random numbers by the names of jina-embeddings-v2; gives the folder as a string."""
    parts = _Writer(6)
    matrix, linear, norm = parts.matrix, parts.linear, parts.norm
    hidden, size, layers = 32, 64, 3

    tensors = {
        "embeddings.word_embeddings.weight": matrix(264, hidden),
        "embeddings.token_type_embeddings.weight": matrix(2, hidden),
        **norm("embeddings.LayerNorm", hidden),
        **linear("pooler.dense", hidden, hidden),
    }
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            tensors |= linear(f"{prefix}.attention.{name}", hidden, hidden)
        tensors |= norm(f"{prefix}.attention.output.LayerNorm", hidden) | norm(f"{prefix}.mlp.layernorm", hidden)
        tensors |= linear(f"{prefix}.mlp.wo", hidden, size)
        tensors[f"{prefix}.mlp.gated_layers.weight"] = matrix(2 * size, hidden)
    config = {
        "architectures": ["JinaBertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": 264,
        "hidden_size": hidden,
        "intermediate_size": size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 8192,
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "emb_pooler": "mean",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    return _write_published(folder, tensors, config)


def _write_published(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any]) -> str:
    folder.mkdir(parents=True)
    save_arrays(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, merges=["Ġ t", "h e", "i n", "a n"])
    return str(folder)


def write_nomic_experts(folder: Path) -> str:
    """Write a model of random numbers by the names of nomic-embed-text-v2-moe; gives the folder as a string."""
    parts = _Writer(5)
    matrix, linear, norm = parts.matrix, parts.linear, parts.norm
    hidden, size, experts = 32, 64, 4

    tensors = {
        "embeddings.word_embeddings.weight": matrix(264, hidden),
        "embeddings.token_type_embeddings.weight": matrix(1, hidden),
        **norm("emb_ln", hidden),
    }
    for layer in range(4):
        prefix = f"encoder.layers.{layer}"
        tensors |= linear(f"{prefix}.attn.Wqkv", 3 * hidden, hidden) | linear(f"{prefix}.attn.out_proj", hidden, hidden)
        tensors |= norm(f"{prefix}.norm1", hidden) | norm(f"{prefix}.norm2", hidden)
        if layer % 2:
            tensors[f"{prefix}.mlp.router.layer.weight"] = 5 * matrix(experts, hidden)
            tensors |= {f"{prefix}.mlp.experts.mlp.{name}": matrix(experts * size, hidden) for name in ("w1", "w2")}
            tensors[f"{prefix}.mlp.experts.bias"] = np.zeros(hidden, np.float32)
        else:
            tensors |= linear(f"{prefix}.mlp.fc1", size, hidden) | linear(f"{prefix}.mlp.fc2", hidden, size)
    config = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "vocab_size": 264,
        "n_embd": hidden,
        "n_layer": 4,
        "n_head": 4,
        "n_inner": size,
        "type_vocab_size": 1,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-5,
        "max_trained_positions": 2048,
        "n_positions": 2048,
        "rotary_emb_base": 1000.0,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_scale_base": None,
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
        **dict.fromkeys(("causal", "prenorm", "parallel_block", "rotary_emb_interleaved"), False),
        "moe_every_n_layers": 2,
        "num_experts": experts,
        "moe_top_k": 2,
        "moe_normalize_expert_weights": False,
        "num_shared_experts": 0,
        "expert_choice_router": False,
        "use_rms_norm": None,
        "pad_token_id": 1,
    }
    return _write_published(folder, tensors, config)


def write_dense(folder: Path, name: str) -> None:
    """Write the layers after pooling as sentence-transformers does."""
    modules = ["Transformer", "Pooling", *["Dense"] * len(dense(name)), "Normalize"]
    entries = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "", "type": f"{_PACKAGE}.{kind}"}
        for index, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    for index, (linear, activation) in enumerate(dense(name), start=2):
        path, bias = folder / f"{index}_Dense", linear.bias is not None
        path.mkdir()
        sizes = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": bias}
        function = f"{type(activation).__module__}.{type(activation).__name__}"
        (path / "config.json").write_text(json.dumps(sizes | {"activation_function": function}))
        tensors = {f"linear.{kind}": tensor.float() for kind, tensor in linear.state_dict().items()}
        save_file(tensors, path / "model.safetensors")


_PACKAGE = "sentence_transformers.models"

PUBLISHED = {"nomic-bert-experts": write_nomic_experts, "jina-bert": write_jina}
"""Writers of models of which transformers knows nothing, by their names in files of their authors."""
