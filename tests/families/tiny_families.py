"""A tiny random model of each family, written by transformers: every optional feature is on in at least one."""

import copy
import functools
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

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
_BIASES = {"attention_bias": True, "mlp_bias": True}
_WINDOW = {"sliding_window": 24}
_GPT_OSS = (
    _HEAD
    | _EXPERTS
    | _WINDOW
    | {"num_hidden_layers": 3, "rope_parameters": _YARN | {"truncate": False, "rope_theta": 1.5e5}}
)
_GEMMA = _HEAD | _WINDOW | {"query_pre_attn_scalar": 16, "tie_word_embeddings": True}

_CLASSIC = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "intermediate_size": None}
_FALCON = {"num_kv_heads": 2, "new_decoder_architecture": True, "tie_word_embeddings": True}
_SCALED_BY_LAYER = {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "n_inner": 48}


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4} | parameters}


# The name of the family's config class in transformers without "Config", and what differs from the sizes above.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _HEAD | _BIASES),
    "llama-3.1": ("Llama", _HEAD | {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama-linear": ("Llama", _rope("linear", factor=2.0)),
    "llama-dynamic": ("Llama", _rope("dynamic", factor=2.0)),
    "mistral": ("Mistral", _HEAD | _WINDOW),
    "ministral": ("Ministral", _HEAD | _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}),
    "ministral-3": ("Ministral3", _HEAD | {"rope_parameters": _MINISTRAL3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", _WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("Qwen3", _HEAD),
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
    "glm": ("Glm", _HEAD),
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
    "nemotron": ("Nemotron", {}),
    "nemotron-biases": ("Nemotron", _HEAD | _BIASES),
    "jais2": ("Jais2", {}),
    "olmo": ("Olmo", {}),
    "olmo-biases": ("Olmo", {"attention_bias": True}),
    "phi": ("Phi", {"num_key_value_heads": 4, "intermediate_size": 128}),
    "gpt-neox": ("GPTNeoX", {}),
    "gpt-neox-serial": ("GPTNeoX", {"use_parallel_residual": False}),
    "gpt-neox-fewer-biases": ("GPTNeoX", {"attention_bias": False}),
    "gpt2": ("GPT2", _CLASSIC | {"tie_word_embeddings": True}),
    "gpt2-scaled": ("GPT2", _CLASSIC | _SCALED_BY_LAYER),
    "gpt-bigcode": ("GPTBigCode", _CLASSIC | {"tie_word_embeddings": True}),
    "gpt-bigcode-all-heads": ("GPTBigCode", _CLASSIC | {"multi_query": False}),
    "gptj": ("GPTJ", _CLASSIC | {"rotary_dim": 4}),
    "falcon-7b": ("Falcon", {"multi_query": True, "tie_word_embeddings": True}),
    "falcon-40b": ("Falcon", _FALCON),
    "falcon2": ("Falcon", _FALCON | {"num_ln_in_parallel_attn": 1, "bias": True, "ffn_hidden_size": 48}),
    "cohere": ("Cohere", {"logit_scale": 0.5, "tie_word_embeddings": True}),
    "cohere-biases": ("Cohere", {"attention_bias": True}),
    "gemma": ("Gemma", _HEAD | {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    "vault-gemma": ("VaultGemma", _GEMMA),
    "cohere2": ("Cohere2", _WINDOW | {"num_hidden_layers": 4, "logit_scale": 0.5, "tie_word_embeddings": True}),
}
# Models whose RoPE is another one for prompts as long as `PROMPT`; transformers chooses it by each prompt.
LONG_CONTEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3-longrope-long": ("Phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64}),
}


@functools.cache
def oracle(name: str) -> PreTrainedModel:
    """The model in transformers, float32, with weights large enough that logits differ clearly."""
    kind, changes = copy.deepcopy((FAMILIES | LONG_CONTEXTS)[name])  # configurations write into their RoPE
    config = getattr(transformers, f"{kind}Config")(**_SIZES | changes)
    generator = torch.Generator().manual_seed(len(name))
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some biases and sinks are random from the start
        head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
        model = getattr(transformers, f"{kind.removesuffix('Text')}{head}")(config).float().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 1.5 * parameter.shape[-1] ** -0.5, generator=generator)
        else:
            parameter.data += torch.empty_like(parameter).uniform_(-0.5, 0.5, generator=generator)
            assert any(kind in parameter_name for kind in ("norm", "ln_", "bias", "sinks", "alpha"))
        parameter.data = parameter.data.half().float()  # so that a float16 file keeps every bit
    return model


def write_tiny_family(folder: Path, name: str) -> str:
    """Write the model as `save_pretrained` does, with a byte-level tokenizer; gives the folder as a string."""
    oracle(name).save_pretrained(str(folder))
    write_tokenizer(folder, merges=["Ġ t", "h e", "i n", "a n"])
    return str(folder)
