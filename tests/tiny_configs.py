"""A small configuration for every causal language model of transformers, for the table of what runs."""

from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

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
    **dict.fromkeys(("head_dim", "swa_head_dim", "dim_head", "kv_channels", "attention_head_size", "global_head_dim"), 16),
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
_OF_ONE: dict[str, dict[str, Any]] = {}


def tiny_config(model_type: str) -> PretrainedConfig:
    """The default configuration of a type of model, with few and small layers, as a decoder."""
    return _tiny(CONFIG_MAPPING[model_type], _OF_ONE.get(model_type, {}))


def _tiny(kind: type[PretrainedConfig], changes: dict[str, Any]) -> PretrainedConfig:
    default = kind()
    fields = {**default.to_dict(), **{name: None for name in kind.attribute_map}}
    sizes = {name: size for name, size in _SIZES.items() if name in fields and name not in kind.attribute_map}
    if "partial_rotary_factor" not in default.to_dict():
        sizes.pop("partial_rotary_factor", None)
    for name, value in fields.items():
        if isinstance(value, list) and name in sizes:
            sizes[name] = [sizes[name]] * NUM_LAYERS
    if "is_decoder" in fields or hasattr(default, "is_decoder"):
        sizes["is_decoder"] = True
    for name, section in kind.sub_configs.items():
        if name in {"text_config", "decoder"} and getattr(default, name, None) is not None:
            sizes[name] = _tiny(type(getattr(default, name)), {}).to_dict()
        del section
    return kind(**sizes | changes)
