"""gpt-oss (arXiv 2508.10925): experts with biases and a clamped gate, attention sinks, every other layer with a window.

Its files have the matrices of all experts in one tensor, with the rows of gate and up interleaved.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    Family,
    GgufNames,
    layer_types,
    read_attention,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import ClampedGate, FeedForwardSpec, LayerSpec, ModelSpec
from pyllm.families.tensor_names import EXPERTS, GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of gpt-oss describes."""
    config = config.with_defaults(head_dim=64, num_key_value_heads=8, rms_norm_eps=1e-5, sliding_window=128)
    if not {"rope_parameters", "rope_scaling"} & set(config):
        config = config.replaced(rope_parameters=_ROPE)
    norm, bias = read_norm(config), config.flag("attention_bias", True)
    attention = read_attention(config, bias=bias, output_bias=bias, sinks=True)
    window = config.optional_integer("sliding_window")
    feed_forward = FeedForwardSpec(
        size=config.integer("intermediate_size"),
        bias=True,
        routing=read_routing(config, normalised=True),
        clamped_gate=ClampedGate(
            limit=config.positive("swiglu_limit", 7.0), alpha=config.positive("swiglu_alpha", 1.702)
        ),
    )
    layers = [
        LayerSpec(
            attention=replace_struct(attention, window=window if kind == "sliding_attention" else None),
            feed_forward=feed_forward,
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda index: index % 2 == 0)
    ]
    return read_model(config, layers, (read_rope(config, attention.head_size, theta=150_000.0),))


# transformers' defaults for a config.json without fields of RoPE.
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
FAMILY = Family(
    architectures=("GptOssForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS
        | {
            "attention.sinks": "self_attn.sinks",
            "feed_forward.router": "mlp.router",
            "feed_forward.experts.down": "mlp.experts.down_proj",
        },
        stacked={"mlp.experts.gate_up_proj": EXPERTS[:2]},
        alternating=frozenset({"mlp.experts.gate_up_proj"}),
        bare=frozenset({"self_attn.sinks", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"}),
        transposed=frozenset(EXPERTS),
    ),
    gguf=GgufNames(
        architectures=("gpt-oss",),
        tensors=replace(
            GGUF_NAMES,
            parts=GGUF_PARTS | {"attention.sinks": "attn_sinks", "feed_forward_norm": "post_attention_norm"},
        ),
        fields=GGUF_EXPERTS | {"expert_feed_forward_length": "intermediate_size"},
        # GGUF files do not have this field; it is false in every released model.
        complete=lambda config: config.with_section("rope_scaling", truncate=False),
    ),
)
