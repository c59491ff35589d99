"""DBRX (https://www.databricks.com/blog/introducing-dbrx-new-state-art-open-llm): clipped queries, keys and values,
layer norms, experts in every layer.
"""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of DBRX describes; weights of experts that do not sum to 1 are refused."""
    attention, experts = config.section("attn_config"), config.section("ffn_config")
    experts.refuse_unless(moe_normalize_expert_weights=1.0)
    if "moe_normalize_expert_weights" in experts.nulls:
        raise experts.error("moe_normalize_expert_weights", None, "1")
    config = config.renamed(
        hidden_size="d_model",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        max_position_embeddings="max_seq_len",
    )
    config = config.with_defaults(rope_theta=attention.positive("rope_theta", 10_000.0)).replaced(
        num_key_value_heads=attention.integer("kv_n_heads", 1),
        intermediate_size=experts.integer("ffn_hidden_size", 3584),
        num_experts=experts.integer("moe_num_experts", 4),
        num_experts_per_tok=experts.integer("moe_top_k", 1),
        hidden_act=experts.section("ffn_act_fn").text("name", "silu"),
    )
    norm = read_norm(config, "layer_norm_eps", kind="layer")
    layer = LayerSpec(
        attention=read_attention(config, clip=attention.optional_positive("clip_qkv")),
        feed_forward=read_feed_forward(config, routing=read_routing(config, normalised=True)),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


def _complete(config: Config) -> Config:
    """A copy with the sections that a config.json has."""
    attention = {"kv_n_heads": config.value("num_key_value_heads"), "clip_qkv": config.value("clip_qkv")}
    experts = {
        "ffn_hidden_size": config.value("intermediate_size"),
        "moe_num_experts": config.value("num_local_experts"),
        "moe_top_k": config.value("num_experts_per_tok"),
    }
    return config.without("num_local_experts").replaced(attn_config=attention, ffn_config=experts)


_EXPERTS = {
    "feed_forward.experts.gate": "ffn.experts.mlp.w1",
    "feed_forward.experts.up": "ffn.experts.mlp.v1",
    "feed_forward.experts.down": "ffn.experts.mlp.w2",
}
FAMILY = Family(
    architectures=("DbrxForCausalLM",),
    read=read,
    tensors=TensorNames(
        roots=("transformer.", ""),
        embedding="wte",
        norm="norm_f",
        layer="blocks.{}.",
        parts={
            "attention_norm": "norm_attn_norm.norm_1",
            "attention.output": "norm_attn_norm.attn.out_proj",
            "feed_forward_norm": "norm_attn_norm.norm_2",
            "feed_forward.router": "ffn.router.layer",
        }
        | _EXPERTS,
        stacked={"norm_attn_norm.attn.Wqkv": QUERY_KEY_VALUE},
        bare=frozenset(_EXPERTS.values()),
        transposed=frozenset({"feed_forward.experts.down"}),
    ),
    gguf=GgufNames(
        architectures=("dbrx",),
        tensors=replace(
            GGUF_NAMES,
            parts=GGUF_PARTS | {"feed_forward_norm": "attn_output_norm"},
            stacked={"attn_qkv": QUERY_KEY_VALUE},
        ),
        fields=GGUF_EXPERTS | {"attention.clamp_kqv": "clip_qkv"},
        complete=_complete,
    ),
)
