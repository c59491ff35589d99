"""A small configuration for every causal language model of transformers, for the table of what runs."""

from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

NUM_LAYERS = 4

# By the names that the classes of configurations give them. A class takes those that it has.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"), 290),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_hidden_size", "dff", "dim_ff", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("ffn_dim", "intermediate_size_mlp", "dense_intermediate_size", "shared_intermediate_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "encoder_ffn_dim", "router_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), NUM_LAYERS),
    **dict.fromkeys(("num_decoder_layers",), NUM_LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("swa_num_attention_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_query_groups"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "dim_head", "kv_channels", "attention_head_size"), 16),
    "global_head_dim": 16,
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim", "index_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    "qk_head_dim": 24,
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "moe_layer_end_index": NUM_LAYERS - 1,
    "max_position_embeddings": 256,
    **dict.fromkeys(("n_positions", "n_ctx", "max_seq_len", "max_target_positions"), 256),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "local_attention"), 16),
    **dict.fromkeys(("attention_window_size",), 16),
    "max_window_layers": 2,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 16,
    "embedding_size": 32,
    "rotary_pct": 0.5,
    "partial_rotary_factor": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What one class needs beyond that.
_OF_ONE: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in ("full_attention", "sliding_attention")
        },
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "dots1": {"moe_intermediate_size": 32, "n_shared_experts": 1},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_unified_assistant": {"text_config": {"num_kv_shared_layers": 0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "attention_layers": ["global", "local"] * 2},
    "longcat_flash": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (16, 16)},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": {"layer_types": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
# Sections of a configuration that the model needs, whatever they become.
_TEXT = ("text_config", "decoder", "decoder_config")


def causal_models() -> dict[str, type[PreTrainedModel]]:
    """Every class of transformers for causal language models, by its name."""
    return {kind.__name__: kind for kind in dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING.values())}


def tiny_config(kind: type[PretrainedConfig]) -> PretrainedConfig:
    """The default configuration of a class, with few and small layers, as a decoder."""
    default = kind()
    fields = {**default.to_dict(), **dict.fromkeys(kind.attribute_map)}
    sizes = {name: size for name, size in _SIZES.items() if name in fields and name not in kind.attribute_map}
    if "qk_rope_head_dim" in fields:  # of which all is rotated, and which is called head_dim
        sizes = {name: size for name, size in sizes.items() if name not in {"partial_rotary_factor", "head_dim"}}
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    for name, value in fields.items():
        if isinstance(value, list) and name in sizes:
            sizes[name] = [sizes[name]] * NUM_LAYERS
    if hasattr(default, "is_decoder"):
        sizes["is_decoder"] = True
    changes = _OF_ONE.get(kind.model_type, {})
    for name in kind.sub_configs:
        if (section := getattr(default, name, None)) is not None:
            try:
                sizes[name] = tiny_config(type(section)).to_dict()
            except Exception:
                if name in _TEXT:
                    raise
    for name, change in changes.items():
        sizes[name] = {**sizes[name], **change} if isinstance(sizes.get(name), dict) else change
    return kind(**sizes)


def tiny_model(kind: type[PreTrainedModel]) -> PreTrainedModel:
    """A small model with random weights, large enough that answers depend on every layer."""
    config = tiny_config(kind.config_class)
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    model = kind._from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 2 / parameter.shape[-1] ** 0.5, generator=generator)
            elif parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model
