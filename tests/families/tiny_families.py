"""A tiny random model of each family, written by transformers: every optional feature is on in at least one."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.families.lightning_reference import with_lightning
from tests.families.renamed_families import RENAMED, rename
from tests.tiny_model import write_tokenizer

CONTEXT = 256
PROMPT = [(37 * position * position + 11 * position) % 256 for position in range(90)]
_SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
_HEAD = {"head_dim": 16}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4} | parameters}


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.5, 2.5, 3.5],
    "original_max_position_embeddings": 64,
}
_MINISTRAL3 = _YARN | {"llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}

_SCALED = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
_DENSE = {
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 48,
    "mamba_n_heads": 8,
    "layer_types": ["full_attention"] * 2,
}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64}
_QWEN3_MOE = {"moe_intermediate_size": 64}
_SHARED = {"num_experts": 6, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 40}
_DEEPSEEK = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
_SOLAR = _HEAD | {name: value for name, value in _DEEPSEEK.items() if name != "first_k_dense_replace"}
_EXAONE_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_shared_experts": 2}
_AFMOE = _HEAD | _EXAONE_MOE | {"num_hidden_layers": 4, "sliding_window": 24, "num_dense_layers": 1, "route_scale": 1.5}
_HY_V3 = _EXAONE_MOE | {"num_shared_experts": 1}
_ERNIE_MOE = {
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 64,
    "moe_num_shared_experts": 1,
    "intermediate_size": 128,
}
_LLAMA4 = {
    "num_local_experts": 6,
    "intermediate_size": 64,
    "intermediate_size_mlp": 48,
    "attention_chunk_size": 128,
    "no_rope_layer_interval": 2,
    "floor_scale": 16,
}
_PHIMOE_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.5, 3.5, 4.5],
    "short_mscale": 1.2,
    "long_mscale": 1.2,
    "original_max_position_embeddings": 128,
}
_HUNYUAN_MOE = {"num_experts": 6, "moe_topk": [2, 2], "intermediate_size": 64}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_WINDOW = {"sliding_window": 24}
_MELLUM = _HEAD | _EXPERTS | _QWEN3_MOE | _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
_ROPES = {"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
_COHERE2_MOE = _HEAD | _WINDOW | {"num_hidden_layers": 4, "num_experts": 6, "intermediate_size": 64}
_GPT_OSS = (
    _HEAD
    | _EXPERTS
    | _WINDOW
    | {"num_hidden_layers": 3, "rope_parameters": _YARN | {"truncate": False, "rope_theta": 1.5e5}}
)
_GEMMA = _HEAD | _WINDOW | {"query_pre_attn_scalar": 16, "tie_word_embeddings": True}

_GEMMA3N = _GEMMA | {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "intermediate_size": [48, 64, 48, 48, 64, 64],
    "activation_sparsity_pattern": [0.6, 0.6, 0.0, 0.0, 0.9, 0.0],
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 264,
    "laurel_rank": 4,
    "final_logit_softcapping": 5.0,
    "rms_norm_eps": 0.002,
}
_GEMMA4 = _GEMMA | {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", *["sliding_attention", "full_attention"] * 2],
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 264,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 2.5,
    # An epsilon that bounds the norm of values near zero, which would enlarge the rounding of sums in float32.
    "rms_norm_eps": 0.002,
}
_GEMMA4_LARGE = _GEMMA4 | {
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "global_head_dim": 8,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}

_CLASSIC = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "intermediate_size": None}
_GPT_NEO = {
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 24,
    "tie_word_embeddings": True,
}
_MPT = {"max_seq_len": CONTEXT, "num_key_value_heads": None, "no_bias": True}
_FALCON = {"num_kv_heads": 2, "new_decoder_architecture": True, "tie_word_embeddings": True}
_SCALED_BY_LAYER = {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "n_inner": 48}

# An epsilon that bounds the norm of outputs near zero, which would enlarge the rounding of sums in float32.
_DELTA = _HEAD | {
    "rms_norm_eps": 0.002,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_MROPE = _rope("default", partial_rotary_factor=0.25, mrope_section=[1, 1, 0])  # the same for all positions of texts
_SHARED_EXPERT = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 48}
_BAMBA = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 4,
    "mamba_d_state": 16,
    "mamba_d_head": 16,
    "rms_norm_eps": 0.002,
}
_MAMBA = _BAMBA | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_NEMOTRON_H = _HEAD | {
    "num_hidden_layers": 5,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "layer_norm_epsilon": 0.01,
    "time_step_min": 1e-9,  # transformers alone bounds steps by it, and in prompts alone
}
_JAMBA = {
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 6,
    "expert_layer_offset": 0,
    "intermediate_size": 64,
    "mamba_d_state": 12,
    "rms_norm_eps": 0.01,
}
_SCAN = {"num_hidden_layers": 3, "intermediate_size": 64, "state_size": 12, "layer_norm_epsilon": 0.01}
_SPACE = {
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "num_heads": 4,
    "head_dim": 16,
    "n_groups": 2,
    "state_size": 16,
    "layer_norm_epsilon": 0.01,
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 32,
}
_INDEX = {"index_topk": 24, "index_n_heads": 16, "index_head_dim": 128, "n_shared_experts": 1}
_MISTRAL4 = _LATENT | _QWEN3_MOE | {"n_routed_experts": 6, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5}
_MISTRAL4_ROPE = _YARN | {"llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}
_DEEPSEEK_YARN = _YARN | {"mscale": 0.9, "mscale_all_dim": 0.9}
_NEMOTRON_H_EXPERTS = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "moe"],
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 1.5,
}
_FALCON_H1 = _HEAD | {
    "mamba_n_heads": 4,
    "mamba_d_ssm": 64,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "rms_norm_eps": 0.01,
    # Powers of two, which llama.cpp's converter multiplies into float16 without rounding.
    "attention_in_multiplier": 2.0,
    "attention_out_multiplier": 0.5,
    "key_multiplier": 0.25,
    "ssm_in_multiplier": 0.5,
    "ssm_multipliers": [4.0, 2.0, 1.0, 0.5, 8.0],
    "ssm_out_multiplier": 2.0,
    "mlp_multipliers": [2.0, 0.5],
    "embedding_multiplier": 4.0,
    "lm_head_multiplier": 0.5,
}
_LFM2 = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_multiple_of": 16,
    "block_ffn_dim_multiplier": 1.3,
    "tie_word_embeddings": True,
}
_LFM3 = _HEAD | {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
    "sliding_window": 24,
    "tie_word_embeddings": True,
}
_LFM2_MOE = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "num_dense_layers": 1,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "tie_word_embeddings": True,
}

_KIMI = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "num_attention_heads": 4,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "kv_lora_rank": 32,
    "v_head_dim": 32,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}

_LIGHTNING = _HEAD | {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "block_size": 16,
}
_LING = _HEAD | _DEEPSEEK | {"n_group": 2, "topk_group": 1, "use_qk_norm": True, "rms_norm_eps": 0.002}
_DEEPSEEK_MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "qkv_bias": False,
    "intermediate_size": 64,
}
_LING_3 = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "kv_lora_rank": 32,
    "v_head_dim": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 3,
    "topk_group": 2,
    "layer_group_size": 3,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
    "rms_norm_eps": 0.002,
}
_OLMO_HYBRID = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "rms_norm_eps": 0.002,
}
_FLINT = _HEAD | _WINDOW | _EXPERTS | _QWEN3_MOE | {"num_hidden_layers": 4, "shared_expert_intermediate_size": 40}
_LAGUNA = (
    _HEAD
    | _WINDOW
    | _EXPERTS
    | _QWEN3_MOE
    | {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", *["sliding_attention"] * 3],
        "num_attention_heads_per_layer": [4, 8, 8, 8],
        "shared_expert_intermediate_size": 40,
        "moe_routed_scaling_factor": 1.5,
        "rope_parameters": {
            "full_attention": _YARN | {"partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 1.0},
        },
    }
)
_MIMO = (
    _EXPERTS
    | _QWEN3_MOE
    | {
        "head_dim": 24,
        "v_head_dim": 16,
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 24,
        "n_routed_experts": 6,
    }
)
_STEP = (
    _HEAD
    | _WINDOW
    | _QWEN3_MOE
    | {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "num_sliding_attention_heads": 8,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "share_expert_dim": 40,
        "moe_router_scaling_factor": 1.5,
        "swiglu_limits": [0.0, None, 0.3, 0.5],
        "swiglu_limits_shared": [0.4, 0.0, 0.3, None],
        "rope_parameters": {
            "full_attention": _LLAMA3 | {"partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 1.0},
        },
    }
)
_TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_ALPHAS = {f"{part}_alpha_factor": 3.5 for part in ("full_attn", "linear_attn", "mlp")}

# The name of the family's config class in transformers without "Config", and what differs from the sizes above.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _HEAD | _BIASES),
    "llama-3.1": ("Llama", _HEAD | {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama-linear": ("Llama", _rope("linear", factor=2.0)),
    "llama-dynamic": ("Llama", _rope("dynamic", factor=2.0)),
    "exaone": ("Llama", {"rope_parameters": _LLAMA3}),
    "internlm2": ("Llama", {"num_hidden_layers": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "minicpm": (
        "Granite",
        _SCALED | {"attention_multiplier": 8**-0.5, "logits_scaling": 4.0, "tie_word_embeddings": True},
    ),
    "mistral": ("Mistral", _HEAD | _WINDOW),
    "ministral": ("Ministral", _HEAD | _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}),
    "ministral-3": ("Ministral3", _HEAD | {"rope_parameters": _MINISTRAL3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", _WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen2-moe": ("Qwen2Moe", _EXPERTS | _SHARED),
    "qwen2-moe-dense": (
        "Qwen2Moe",
        _EXPERTS | _SHARED | {"decoder_sparse_step": 2, "qkv_bias": False, "norm_topk_prob": True},
    ),
    "qwen2-moe-window": (
        "Qwen2Moe",
        _EXPERTS | _SHARED | _WINDOW | {"num_hidden_layers": 4, "use_sliding_window": True, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", _HEAD),
    "qwen2.5-vl": ("Qwen2", {}),
    "qwen3-vl": ("Qwen3", _HEAD),
    "qwen3-vl-moe": ("Qwen3Moe", _HEAD | _EXPERTS | _QWEN3_MOE | {"norm_topk_prob": True}),
    "qwen3-bias": ("Qwen3", _HEAD | {"attention_bias": True}),
    "gemma2": ("Gemma2", _GEMMA),
    "gemma2-scaled": ("Gemma2", _GEMMA | {"query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3Text", _GEMMA | {"num_hidden_layers": 6}),
    "phi3": ("Phi3", _WINDOW),
    "phi3-longrope": ("Phi3", {"rope_parameters": _LONGROPE}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2", {}),
    "olmo2-one-kv-head": ("Olmo2", {"num_key_value_heads": 1}),
    "olmo3": ("Olmo3", _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}),
    "olmo-hybrid": ("OlmoHybrid", _OLMO_HYBRID | {"rope_parameters": {"rope_type": "default", "rope_theta": None}}),
    "olmo-hybrid-rope": (
        "OlmoHybrid",
        _OLMO_HYBRID
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 24}
        | {"linear_allow_neg_eigval": False, "attention_bias": True, "linear_key_head_dim": 16}
        | _rope("default"),
    ),
    "granite": ("Granite", _SCALED | _BIASES),
    "granite-4": ("GraniteMoeHybrid", _SCALED | _DENSE | {"position_embedding_type": "rope"}),
    "granite-4-nope": ("GraniteMoeHybrid", _DENSE | {"attention_multiplier": 0.2}),
    "mixtral": ("Mixtral", _WINDOW | _EXPERTS),
    "mixtral-whole": ("Mixtral", _EXPERTS),
    "qwen3-moe": ("Qwen3Moe", _HEAD | _EXPERTS | _QWEN3_MOE | {"norm_topk_prob": True}),
    "qwen3-moe-dense": ("Qwen3Moe", _HEAD | _EXPERTS | _QWEN3_MOE | {"mlp_only_layers": [0]}),
    "olmoe": ("Olmoe", _EXPERTS | {"num_local_experts": 5, "num_key_value_heads": 4}),
    "granite-moe": ("GraniteMoe", _SCALED | _EXPERTS),
    "gpt-oss": ("GptOss", _GPT_OSS),
    "gpt-oss-clamped": ("GptOss", _GPT_OSS | {"swiglu_limit": 0.8, "swiglu_alpha": 1.3, "attention_bias": False}),
    "flint": ("Flint", _FLINT | {"num_experts": 6}),
    "flint-sparse": (
        "Flint",
        _FLINT
        | {"num_experts": 6, "mlp_only_layers": [2], "norm_topk_prob": False, "attention_bias": True}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "laguna": ("Laguna", _LAGUNA | {"num_experts": 6}),
    "mimo-v2": ("MiMoV2Flash", _MIMO),
    "mimo-v2-biases": (
        "MiMoV2Flash",
        _MIMO
        | {"attention_bias": True, "mlp_layer_types": ["sparse", "dense"] * 2}
        | {"attention_value_scale": None, "routed_scaling_factor": 1.5},
    ),
    "step-3.5": ("Step3p7", _STEP),
    "step-3.7": ("Step3p7", _STEP | {"swiglu_limits_shared": None, "num_sliding_attention_heads": None}),
    "laguna-wide-gates": (
        "Laguna",
        _LAGUNA
        | {"num_experts": 6, "gating": "per-element"}
        | {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "num_attention_heads_per_layer": None},
    ),
    "bitnet": ("BitNet", {"tie_word_embeddings": True}),
    "bitnet-first": ("BitNet", {"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": True}),
    "bitnet-bias": ("BitNet", {"attention_bias": True, "hidden_act": "silu", "rms_norm_eps": 0.1}),
    "glm": ("Glm", _HEAD),
    "glm-9b": ("Glm", {"head_dim": 8}),
    "chatglm": ("Glm", _HEAD),
    "glm4": ("Glm4", _HEAD),
    "seed-oss": ("SeedOss", _HEAD),
    "seed-oss-biases": ("SeedOss", _HEAD | {"attention_out_bias": True, "mlp_bias": True}),
    "arcee": ("Arcee", _HEAD),
    "arcee-biases": ("Arcee", _HEAD | _BIASES),
    "helium": ("Helium", {"head_dim": 8, "attention_bias": True}),
    "cwm": ("Cwm", _HEAD | _WINDOW),
    "exaone4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "exaone4-windows": ("Exaone4", _WINDOW | {"num_hidden_layers": 4}),
    "starcoder2": ("Starcoder2", {"tie_word_embeddings": True}),
    "starcoder2-window": ("Starcoder2", _WINDOW | {"use_bias": False}),
    "stablelm": ("StableLm", {"num_key_value_heads": 4}),
    "stablelm-parallel": ("StableLm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    "apertus": ("Apertus", _BIASES),
    "apertus-llama3": ("Apertus", _HEAD | {"rope_parameters": _LLAMA3}),
    "nemotron": ("Nemotron", {}),
    "nemotron-biases": ("Nemotron", _HEAD | _BIASES),
    "jais2": ("Jais2", {}),
    "olmo": ("Olmo", {}),
    "olmo-biases": ("Olmo", {"attention_bias": True}),
    "olmo-clipped": ("Olmo", {"clip_qkv": 0.8}),
    "phi": ("Phi", {"num_key_value_heads": 4, "intermediate_size": 128}),
    "gpt-neox": ("GPTNeoX", {}),
    "gpt-neox-serial": ("GPTNeoX", {"use_parallel_residual": False}),
    "gpt-neox-fewer-biases": ("GPTNeoX", {"attention_bias": False}),
    "gpt-neox-japanese": ("GPTNeoXJapanese", {"intermediate_multiple_size": 2}),
    "gpt2": ("GPT2", _CLASSIC | {"tie_word_embeddings": True}),
    "gpt2-scaled": ("GPT2", _CLASSIC | _SCALED_BY_LAYER),
    "gpt-bigcode": ("GPTBigCode", _CLASSIC | {"tie_word_embeddings": True}),
    "gpt-bigcode-all-heads": ("GPTBigCode", _CLASSIC | {"multi_query": False}),
    "gptj": ("GPTJ", _CLASSIC | {"rotary_dim": 4}),
    "codegen": ("CodeGen", _CLASSIC | {"rotary_dim": 4}),
    "codegen-8-heads": ("CodeGen", _CLASSIC | {"rotary_dim": 4, "n_embd": 64, "n_head": 8, "n_inner": 48}),
    "gpt-neo": ("GPTNeo", _GPT_NEO),
    "afmoe": ("Afmoe", _AFMOE | {"mup_enabled": True}),
    "afmoe-all-experts": ("Afmoe", _AFMOE | {"global_attn_every_n_layers": 2, "num_dense_layers": 0}),
    "dbrx": (
        "Dbrx",
        {
            "d_model": 32,
            "max_seq_len": CONTEXT,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 6, "moe_top_k": 2},
        },
    ),
    "opt": ("OPT", {"ffn_dim": 48, "tie_word_embeddings": True}),
    "opt-bare": ("OPT", {"ffn_dim": 48, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "biogpt": ("BioGpt", {"tie_word_embeddings": True}),
    "biogpt-unscaled": ("BioGpt", {"scale_embedding": False, "hidden_act": "relu"}),
    "xglm": ("XGLM", {"d_model": 32, "ffn_dim": 48, "tie_word_embeddings": True}),
    "xglm-unscaled": ("XGLM", {"d_model": 32, "ffn_dim": 48, "scale_embedding": False, "activation_function": "relu"}),
    "nanochat": ("NanoChat", {"final_logit_softcapping": 5.0}),
    "granite-swa": ("GraniteSWA", _SCALED | _WINDOW | {"num_hidden_layers": 4, "layer_rope_theta": [1e4, 0, 5e5, 1e4]}),
    "granite-swa-gguf": (
        "GraniteSWA",
        _SCALED | _WINDOW | {"num_hidden_layers": 4, "layer_rope_theta": [1e4, 0, 1e4, 1e4]},
    ),
    "granite-moe-swa-gguf": (
        "GraniteMoeSWA",
        _SCALED | _EXPERTS | _WINDOW | {"num_hidden_layers": 4, "shared_intermediate_size": 48},
    ),
    "granite-swa-one-base": ("GraniteSWA", _WINDOW | {"attention_multiplier": 0.2}),
    "hyperclova": ("HyperCLOVAX", _SCALED | _BIASES),
    "hyperclova-plain": ("HyperCLOVAX", {"use_post_norm": False}),
    "falcon-7b": ("Falcon", {"multi_query": True, "tie_word_embeddings": True}),
    "falcon-40b": ("Falcon", _FALCON),
    "falcon2": ("Falcon", _FALCON | {"num_ln_in_parallel_attn": 1, "bias": True, "ffn_hidden_size": 48}),
    "falcon-rw": (
        "Falcon",
        {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True, "tie_word_embeddings": True},
    ),
    "bloom": ("Bloom", {"tie_word_embeddings": True}),
    "bloom-uneven": ("Bloom", {"hidden_size": 48, "num_attention_heads": 6}),
    "mpt": ("Mpt", _MPT | {"tie_word_embeddings": True, "attn_config": {"clip_qkv": 0.8}}),
    "mpt-uneven": (
        "Mpt",
        _MPT | {"hidden_size": 48, "num_attention_heads": 6, "attn_config": {"softmax_scale": 0.3}},
    ),
    "cohere": ("Cohere", {"logit_scale": 0.5, "tie_word_embeddings": True}),
    "cohere-biases": ("Cohere", {"attention_bias": True}),
    "gemma": ("Gemma", _HEAD | {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    "vault-gemma": ("VaultGemma", _GEMMA),
    "glm4-moe": ("Glm4Moe", _DEEPSEEK | {"n_group": 2, "use_qk_norm": True}),
    "solar-open": ("SolarOpen", _SOLAR | _rope("default", partial_rotary_factor=1.0)),
    "solar-open-bias": ("SolarOpen", _SOLAR | {"attention_bias": True, "n_group": 2}),
    "exaone-moe": ("ExaoneMoe", _EXAONE_MOE | _WINDOW | {"sliding_window_pattern": 2, "n_group": 2}),
    "exaone-moe-first": (
        "ExaoneMoe",
        _EXAONE_MOE | _WINDOW | {"mlp_layer_types": ["sparse", "dense"], "layer_types": ["full_attention"] * 2},
    ),
    "exaone-moe-4": ("ExaoneMoe", _EXAONE_MOE | _WINDOW | {"num_hidden_layers": 4}),
    "hy-v3": ("HYV3", _HEAD | _HY_V3),
    "hy-v3-first": ("HYV3", _HEAD | _HY_V3 | {"mlp_layer_types": ["sparse", "dense"], "attention_bias": True}),
    "glm4-moe-bias": ("Glm4Moe", _DEEPSEEK | {"norm_topk_prob": False, "attention_bias": True}),
    "dots1": (
        "Dots1",
        _DEEPSEEK
        | {"sliding_window": None, "n_group": 3, "topk_group": 2, "norm_topk_prob": True, "num_key_value_heads": 4},
    ),
    "dots1-window": ("Dots1", _DEEPSEEK | _WINDOW | {"max_window_layers": 1, "attention_bias": True}),
    "ernie": ("Ernie4_5", _HEAD | {"tie_word_embeddings": True}),
    "ernie-bias": ("Ernie4_5", _HEAD | {"use_bias": True}),
    "ernie-moe": ("Ernie4_5_Moe", _ERNIE_MOE),
    "ernie-moe-some": (
        "Ernie4_5_Moe",
        _ERNIE_MOE
        | {"num_hidden_layers": 4, "moe_layer_interval": 2, "moe_layer_end_index": 1, "moe_layer_start_index": 0},
    ),
    "minimax-m2": ("MiniMaxM2", _HEAD | _EXPERTS | _rope("default", partial_rotary_factor=0.5)),
    "hunyuan": ("HunYuanDenseV1", _HEAD),
    "hunyuan-alpha": ("HunYuanDenseV1", _HEAD | {"attention_bias": True} | _rope("dynamic", alpha=50.0, factor=1.0)),
    "hunyuan-moe": ("HunYuanMoEV1", _HEAD | _HUNYUAN_MOE),
    "llama4": ("Llama4Text", _HEAD | _LLAMA4),
    "llama4-scout": (
        "Llama4Text",
        _HEAD | _EXPERTS | {"num_hidden_layers": 4, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 2},
    ),
    "llama4-dense": (
        "Llama4Text",
        _HEAD | _LLAMA4 | {"moe_layers": [1], "use_qk_norm": False, "attention_bias": True, "num_experts_per_tok": 2},
    ),
    "phimoe": ("Phimoe", _EXPERTS | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.2}),
    "phimoe-longrope": ("Phimoe", _EXPERTS | _WINDOW | {"rope_parameters": _PHIMOE_ROPE}),
    "flex-olmo": ("FlexOlmo", _EXPERTS | {"num_experts": 6}),
    "granite-moe-shared": ("GraniteMoeShared", _SCALED | _EXPERTS | {"shared_intermediate_size": 48}),
    "granite-moe-swa": (
        "GraniteMoeSWA",
        _SCALED
        | _EXPERTS
        | _WINDOW
        | {"num_hidden_layers": 4, "shared_intermediate_size": 48, "layer_rope_theta": [1e4, 0, 5e5, 1e4]},
    ),
    "mellum": ("Mellum", _MELLUM | {"rope_parameters": _ROPES}),
    "mellum-bases": (
        "Mellum",
        _MELLUM
        | {
            "mlp_layer_types": ["dense", "sparse"],
            "norm_topk_prob": False,
            "rope_parameters": _ROPES | {"full_attention": {"rope_type": "default", "rope_theta": 5e5}},
        },
    ),
    "cohere2-moe": (
        "Cohere2Moe",
        _COHERE2_MOE | {"expert_selection_fn": "sigmoid", "num_shared_experts": 2, "tie_word_embeddings": True},
    ),
    "cohere2-moe-dense": (
        "Cohere2Moe",
        _COHERE2_MOE | {"first_k_dense_replace": 1, "prefix_dense_intermediate_size": 48, "rms_norm_eps": 1e-5},
    ),
    "cohere2-moe-sum": (
        "Cohere2Moe",
        _COHERE2_MOE | {"num_shared_experts": 1, "shared_expert_combination_strategy": "sum", "attention_bias": True},
    ),
    "qwen3-next": ("Qwen3Next", _DELTA | _EXPERTS | _SHARED_EXPERT | {"num_experts": 6}),
    "qwen3-next-dense": (
        "Qwen3Next",
        _DELTA
        | _EXPERTS
        | _SHARED_EXPERT
        | {
            "mlp_only_layers": [0, 2],
            "linear_num_value_heads": 2,
            "rms_norm_eps": 0.1,
            "linear_value_head_dim": 24,
            "num_experts": 6,
            "norm_topk_prob": False,
        },
    ),
    "qwen3.5": ("Qwen3_5Text", _DELTA | _MROPE),
    "qwen3.5-bias": ("Qwen3_5Text", _DELTA | {"attention_bias": True}),
    "qwen3.5-moe": ("Qwen3_5MoeText", _DELTA | _MROPE | _EXPERTS | _SHARED_EXPERT | {"num_experts": 6}),
    "granite-4-mamba": ("GraniteMoeHybrid", _SCALED | _DENSE | _MAMBA),
    "granite-4-mamba-bias": (
        "GraniteMoeHybrid",
        _DENSE | _MAMBA | {"attention_multiplier": 0.2, "mamba_proj_bias": True},
    ),
    "granite-4-mamba-experts": (
        "GraniteMoeHybrid",
        _MAMBA | _EXPERTS | {"shared_intermediate_size": 48, "mamba_n_groups": 2, "attention_multiplier": 0.2},
    ),
    "nemotron-h": ("NemotronH", _NEMOTRON_H),
    "nemotron-h-bias": ("NemotronH", _NEMOTRON_H | {"use_bias": True, "mlp_bias": True, "use_conv_bias": False}),
    "nemotron-h-experts": ("NemotronH", _NEMOTRON_H | _NEMOTRON_H_EXPERTS),
    "nemotron-h-experts-groups": (
        "NemotronH",
        _NEMOTRON_H
        | _NEMOTRON_H_EXPERTS
        | {"layers_block_type": ["moe", "mlp", "full_attention", "linear_attention", "moe"], "n_group": 2},
    ),
    "bamba": ("Bamba", _BAMBA | {"attn_layer_indices": [1], "time_step_limit": (0.2, 0.9)}),
    "bamba-bias": ("Bamba", _BAMBA | _BIASES | {"attn_layer_indices": [0], "mamba_proj_bias": True}),
    "jamba": ("Jamba", _JAMBA),
    "jamba-bias": (
        "Jamba",
        _JAMBA | {"mamba_proj_bias": True, "mamba_conv_bias": False, "num_experts": 1, "mamba_dt_rank": 5},
    ),
    "mamba": ("Mamba", _SCAN | {"tie_word_embeddings": True}),
    "mamba-bias": (
        "Mamba",
        _SCAN | {"use_bias": True, "use_conv_bias": False, "time_step_rank": 5, "intermediate_size": 48},
    ),
    "falcon-mamba": ("FalconMamba", _SCAN | {"mixer_rms_eps": 0.01}),  # llama.cpp has one epsilon for all norms
    "falcon-mamba-bias": ("FalconMamba", _SCAN | {"mixer_rms_eps": 0.1, "use_bias": True}),
    "mamba2": ("Mamba2", _SPACE),
    "mamba2-bias": (
        "Mamba2",
        _SPACE
        | {"use_bias": True, "use_conv_bias": False, "n_groups": 1, "tie_word_embeddings": True}
        | {"time_step_limit": (0.2, 0.9)},
    ),
    "deepseek-v2": ("DeepseekV2", _DEEPSEEK | _LATENT | {"rope_parameters": _DEEPSEEK_YARN}),
    "deepseek-v2-groups": (
        "DeepseekV2",
        _DEEPSEEK
        | _LATENT
        | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "q_lora_rank": None},
    ),
    "deepseek-v3": (
        "DeepseekV3",
        _DEEPSEEK | _LATENT | {"n_group": 3, "topk_group": 2, "rope_parameters": _DEEPSEEK_YARN},
    ),
    "deepseek-v3-one-group": (
        "DeepseekV3",
        _DEEPSEEK
        | _LATENT
        | {"n_group": 1, "topk_group": 1, "q_lora_rank": None, "norm_topk_prob": False, "v_head_dim": 64}
        | {"attention_bias": True, "rope_parameters": _DEEPSEEK_YARN | {"mscale": 0.7, "mscale_all_dim": 1.1}},
    ),
    "mistral-4": ("Mistral4", _MISTRAL4 | {"rope_parameters": _MISTRAL4_ROPE}),
    "mistral-4-gguf": ("Mistral4", _MISTRAL4 | {"rope_parameters": _MISTRAL4_ROPE | {"llama_4_scaling_beta": 0.0}}),
    "mistral-4-dense": (
        "Mistral4",
        _MISTRAL4
        | {"first_k_dense_replace": 1, "norm_topk_prob": False, "attention_bias": True, "q_lora_rank": None}
        | {"rope_parameters": _MISTRAL4_ROPE | {"mscale": 0.9, "mscale_all_dim": 0.7}},
    ),
    "glm4-flash": ("Glm4MoeLite", _DEEPSEEK | _LATENT | {"n_group": 2, "topk_group": 1}),
    "glm4-flash-bias": (
        "Glm4MoeLite",
        _DEEPSEEK | _LATENT | {"mlp_layer_types": ["sparse", "dense"], "attention_bias": True},
    ),
    "youtu": ("Youtu", _LATENT),
    "minicpm3": ("MiniCPM3", _LATENT | {"hidden_size": 128, "v_head_dim": None}),
    "minicpm3-scaled": (
        "MiniCPM3",
        _LATENT
        | {"scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 16, "q_lora_rank": None, "attention_bias": True}
        | _rope(
            "longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0] * 4, original_max_position_embeddings=128
        ),
    ),
    "falcon-h1": ("FalconH1", _FALCON_H1 | {"mamba_n_groups": 2, "mamba_rms_norm": False}),
    "falcon-h1-norm": ("FalconH1", _FALCON_H1 | {"mamba_n_groups": 2}),
    "falcon-h1-bias": (
        "FalconH1",
        _FALCON_H1
        | _BIASES
        | {"mamba_norm_before_gate": True, "mamba_proj_bias": True, "projectors_bias": True, "mamba_conv_bias": False},
    ),
    # llama.cpp has every eighth layer with softmax attention, and one epsilon for all norms.
    "minimax-01": (
        "MiniMax",
        _LIGHTNING
        | _ALPHAS
        | {"num_hidden_layers": 8, "layer_types": ["linear_attention"] * 7 + ["full_attention"], "rms_norm_eps": 1e-6},
    ),
    "minimax-01-factors": (
        "MiniMax",
        _LIGHTNING
        | {"full_attn_alpha_factor": 0.7, "linear_attn_alpha_factor": 2.5, "mlp_alpha_factor": 1.3}
        | {"full_attn_beta_factor": 1.2, "linear_attn_beta_factor": 0.6, "mlp_beta_factor": 2.0}
        | {"head_dim": None, "rms_norm_eps": 0.1},
    ),
    "nemotron-super": ("Llama", {"num_hidden_layers": 5, "num_key_value_heads": 4, "intermediate_size": 256}),
    "deepseek-v3.2": (
        "DeepseekV32",
        _DEEPSEEK
        | _LATENT
        | _INDEX
        | {"n_group": 2, "topk_group": 1, "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "glm-5": (
        "GlmMoeDsa",
        _DEEPSEEK | _LATENT | _INDEX | {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]},
    ),
    "deepseek-moe": ("Qwen2Moe", _DEEPSEEK_MOE | {"mlp_only_layers": [0]}),
    "ling": ("Qwen2Moe", _DEEPSEEK_MOE | {"norm_topk_prob": True, "head_dim": 8}),
    "ling-2": ("Glm4Moe", _LING | {"head_dim": 8} | _rope("default", partial_rotary_factor=0.5)),
    "ring-linear": ("Glm4Moe", _LING | {"num_hidden_layers": 4} | _rope("default", partial_rotary_factor=0.5)),
    "ling-2.5": ("DeepseekV3", _LING | _LATENT | {"head_dim": 8, "num_hidden_layers": 4}),
    "ling-3": ("BailingHybrid", _LING_3),
    "ling-3-unbounded": (
        "BailingHybrid",
        _LING_3
        | {"kda_safe_gate": False, "norm_topk_prob": False, "short_conv_kernel_size": 3}
        | {"layer_types": ["full_attention", "linear_attention", "linear_attention"]},
    ),
    "kimi-linear": ("KimiLinear", _KIMI | {"mlp_layer_types": ["sparse"] * 4}),
    "kimi-linear-dense": (
        "KimiLinear",
        _KIMI
        | {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "n_group": 3, "topk_group": 2}
        | {"linear_num_heads": 2, "linear_conv_kernel_dim": 3, "q_lora_rank": 24, "rms_norm_eps": 0.1}
        | {"norm_topk_prob": False, "n_shared_experts": 2, "attention_bias": True},
    ),
    "lfm2": ("Lfm2", _LFM2),
    "lfm2-bias": ("Lfm2", _LFM2 | {"conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False}),
    "lfm3": ("Lfm3", _LFM3),
    "lfm3-bias": (
        "Lfm3",
        _LFM3
        | {"conv_bias": True, "attention_bias": True, "use_sandwich_norm": False, "conv_L_cache": 3}
        | {"use_attention_gate": False, "tie_word_embeddings": False},
    ),
    "lfm2-moe": ("Lfm2Moe", _LFM2_MOE),
    "lfm2-moe-plain": (
        "Lfm2Moe",
        _LFM2_MOE
        | {
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.5,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3n": ("Gemma3nText", _GEMMA3N),
    "gemma3n-three-streams": (
        "Gemma3nText",
        _GEMMA3N
        | {"altup_num_inputs": 3, "altup_active_idx": 1, "altup_correct_scale": False, "attention_bias": True}
        | {"vocab_size_per_layer_input": 200},
    ),
    # llama.cpp has fixed numbers of some sizes, of layers with a cutoff, and of layers with keys and values.
    "gemma3n-gguf": (
        "Gemma3nText",
        _GEMMA3N
        | {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {"num_kv_shared_layers": 0, "intermediate_size": 48, "activation_sparsity_pattern": [0.95] * 3}
        | {"laurel_rank": 64, "hidden_size_per_layer_input": 256, "final_logit_softcapping": 30.0},
    ),
    "gemma4": ("Gemma4Text", _GEMMA4),
    "gemma4-one-kv-head": ("Gemma4Text", _GEMMA4 | {"num_key_value_heads": 1, "attention_bias": True}),
    "gemma4-large": ("Gemma4Text", _GEMMA4_LARGE),
    "gemma4-experts": (
        "Gemma4Text",
        _GEMMA4_LARGE
        | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 64}
        | {"num_hidden_layers": 3, "layer_types": None},
    ),
    "gemma4-unified": ("Gemma4UnifiedText", _GEMMA4_LARGE | {"num_kv_shared_layers": 2}),
    "cohere2": ("Cohere2", _WINDOW | {"num_hidden_layers": 4, "logit_scale": 0.5, "tie_word_embeddings": True}),
}


class _HalfOpen(torch.nn.Module):
    """The gate of a shared expert whose sigmoid is a half for every token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(*x.shape[:-1], 1)


def _with_open_gates(model: PreTrainedModel) -> None:
    for module in model.modules():
        if hasattr(module, "shared_expert_gate"):
            module.shared_expert_gate = _HalfOpen()


class _Nothing(torch.nn.Module):
    """Attention or feed-forward that a layer lacks."""

    def __init__(self, *, is_attention: bool) -> None:
        super().__init__()
        self._is_attention = is_attention

    def forward(self, x: torch.Tensor | None = None, **others: Any) -> Any:
        nothing = torch.zeros_like(others["hidden_states"] if x is None else x)
        return (nothing, None) if self._is_attention else nothing


def _with_unequal_layers(model: PreTrainedModel) -> None:
    """A layer with fewer KV heads, one that computes nothing, and one without attention, of another size."""
    layers = model.model.layers
    config = copy.deepcopy(model.config)
    config.num_key_value_heads, config.intermediate_size = 2, 512
    layers[1].self_attn = type(layers[1].self_attn)(config, 1).float()
    layers[2].self_attn, layers[2].mlp = _Nothing(is_attention=True), _Nothing(is_attention=False)
    layers[3].self_attn = _Nothing(is_attention=True)
    layers[3].mlp = type(layers[3].mlp)(config).float()


# What changes a model of a class of transformers into one of the family, which has no class there.
_CHANGED: dict[str, Callable[[PreTrainedModel], None]] = {
    "ring-linear": with_lightning(0, 1),
    "ling-2.5": with_lightning(0, 1),
    "deepseek-moe": _with_open_gates,
    "ling": _with_open_gates,
    "nemotron-super": _with_unequal_layers,
}
# Models whose RoPE is another one for prompts as long as `PROMPT`; transformers chooses it by each prompt.
LONG_CONTEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3-longrope-long": ("Phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64}),
}


@functools.cache
def oracle(name: str) -> PreTrainedModel:
    """The model in transformers, float32, with weights large enough that logits differ clearly."""
    kind, changes = copy.deepcopy((FAMILIES | LONG_CONTEXTS)[name])  # configurations write into their RoPE
    fields = _SIZES | changes
    # The text model has no class of its own with a head.
    whole = {"text_config": fields, "vision_config": _TOWER | {"image_size": 8, "patch_size": 4}}
    is_whole = kind == "Step3p7"
    config = getattr(transformers, f"{kind}Config")(**whole if is_whole else fields)
    generator = torch.Generator().manual_seed(len(name))
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some biases and sinks are random from the start
        head = {"GPT2": "LMHeadModel", "Step3p7": "ForConditionalGeneration"}.get(kind, "ForCausalLM")
        model = getattr(transformers, f"{kind.removesuffix('Text')}{head}")(config).float()
        _CHANGED.get(name, lambda _: None)(model)
        model.eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 1.5 * parameter.shape[-1] ** -0.5, generator=generator)
            if name == "bitnet-first" and "layers" in parameter_name:
                parameter.data = parameter.data.sign() / 4  # two values, which llama.cpp's converter keeps
        else:
            parameter.data += torch.empty_like(parameter).uniform_(-0.5, 0.5, generator=generator)
            kinds = (
                "norm",
                "ln_",
                "bias",
                "sinks",
                "alpha",
                "A_log",
                ".D",
                "router.scale",
                "per_expert_scale",
                "output_scale",
            )
            assert "vision" in parameter_name or any(kind in parameter_name for kind in kinds)
        parameter.data = parameter.data.half().float()  # so that a float16 file keeps every bit
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith(("e_score_correction_bias", "expert_bias")):
            buffer.data.uniform_(-0.5, 0.5, generator=generator)
        elif buffer_name.endswith("layer_scalar"):
            buffer.data.uniform_(0.5, 1.5, generator=generator).copy_(buffer.half())
    return model


def write_tiny_family(folder: Path, name: str) -> str:
    """Write the model as `save_pretrained` does, with a byte-level tokenizer; gives the folder as a string."""
    oracle(name).save_pretrained(str(folder))
    if name in RENAMED:
        rename(folder, RENAMED[name])
    write_tokenizer(folder, merges=["Ġ t", "h e", "i n", "a n"])
    return str(folder)
