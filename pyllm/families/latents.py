"""The fields and tensors of latent attention (arXiv 2405.04434), which several families share."""

import math
from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import without_further_layers
from pyllm.families.rope import read_rope, rope_parameters
from pyllm.families.spec import HEAD_FEATURES, AttentionSpec, LatentSpec, NormSpec, RopeSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, HUGGINGFACE_NAMES, LLAMA_PARTS

LATENT_NAMES = replace(
    HUGGINGFACE_NAMES,
    parts=LLAMA_PARTS
    | {
        "attention.query_down": "self_attn.q_a_proj",
        "attention.query_norm": "self_attn.q_a_layernorm",
        "attention.query": "self_attn.q_b_proj",
        "attention.latent": "self_attn.kv_a_proj_with_mqa",
        "attention.latent_norm": "self_attn.kv_a_layernorm",
    },
    stacked={"self_attn.kv_b_proj": ("attention.key", "attention.value")},
    grouped=frozenset({"self_attn.kv_b_proj"}),
    aliases={"self_attn.q_b_proj": "self_attn.q_proj"},
    interleaved=True,
)
"""transformers' names."""

GGUF_LATENT_NAMES = replace(
    GGUF_NAMES,
    parts=GGUF_PARTS
    | {
        "attention.query_down": "attn_q_a",
        "attention.query_norm": "attn_q_a_norm",
        "attention.query": "attn_q_b",
        "attention.latent": "attn_kv_a_mqa",
        "attention.latent_norm": "attn_kv_a_norm",
        "attention.key": "attn_k_b",
        "attention.value": "attn_v_b",
    },
    stacked={"attn_kv_b": ("attention.key", "attention.value")},
    grouped=frozenset({"attn_kv_b"}),
    aliases={"attn_q_b": "attn_q"},
    interleaved=True,
)
"""llama.cpp's names."""

GGUF_LATENT_FIELDS = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.key_length_mla": "qk_head_dim",
    "attention.value_length_mla": "v_head_dim",
    "attention.value_length": "value_length",
    "rope.dimension_count": "qk_rope_head_dim",
    "nextn_predict_layers": "nextn_predict_layers",
}
"""The keys of a GGUF file, as `GgufNames.fields` has them."""

_NORM = NormSpec(epsilon=1e-6)  # in transformers that of every model, whatever its other norms have


def read_latent_attention(config: Config) -> tuple[AttentionSpec, RopeSpec]:
    """The attention that a configuration with DeepSeek's fields describes, and its rotation."""
    for name in ("kv_lora_rank", "v_head_dim"):
        if (size := config.integer(name)) % HEAD_FEATURES:
            raise config.error(name, size, f"a multiple of {HEAD_FEATURES}")
    latent = LatentSpec(
        rank=config.integer("kv_lora_rank"),
        rope_size=config.integer("qk_rope_head_dim"),
        key_size=config.integer("qk_nope_head_dim"),
        value_size=config.integer("v_head_dim"),
        norm=_NORM,
        query_rank=config.optional_integer("q_lora_rank"),
        absorbed=config.flag("absorbed_keys", False),
    )
    rope = read_rope(config, latent.rope_size)
    if rope.rotary_size != latent.rope_size:
        raise config.error("qk_rope_head_dim", latent.rope_size, f"the rotated dimensions, {rope.rotary_size}")
    bias = config.flag("attention_bias", False)
    attention = AttentionSpec(
        heads=config.integer("num_attention_heads"),
        kv_heads=1,
        head_size=latent.cached_size,
        scale=latent.query_size**-0.5 * _yarn_scale(config) ** 2,
        bias=bias,
        output_bias=bias,
        latent=latent,
    )
    return attention, rope


def complete_latent_attention(config: Config) -> Config:
    """The fields that GGUF files of llama.cpp's deepseek2 have under other names.

    In older files the sizes of heads are those of keys and values, whose matrices are in one tensor.
    """
    is_absorbed = "qk_head_dim" in config
    if not is_absorbed:
        config = config.renamed(qk_head_dim="head_dim", v_head_dim="value_length")
    size = config.integer("qk_head_dim") - config.integer("qk_rope_head_dim")
    config = without_further_layers(config).without("partial_rotary_factor")
    config = config.replaced(
        qk_nope_head_dim=size, q_lora_rank=config.optional_integer("q_lora_rank"), absorbed_keys=is_absorbed
    )
    if "mscale_all_dim" not in rope_parameters(config):
        return config
    # The files have a tenth of it, and the other factor is the same in all models.
    scale = 10 * rope_parameters(config).number("mscale_all_dim")
    return config.with_section("rope_scaling", mscale=scale, mscale_all_dim=scale)


def _yarn_scale(config: Config) -> float:
    """The factor of queries and keys, by which attention to a longer context stays as sharp (YaRN)."""
    parameters = rope_parameters(config)
    scale = parameters.number("mscale_all_dim", 0)
    if not scale or (factor := parameters.positive("factor", 1.0)) <= 1:
        return 1.0
    return 0.1 * scale * math.log(factor) + 1
