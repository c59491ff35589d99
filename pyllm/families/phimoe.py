"""Phi-3.5-MoE (arXiv 2404.14219): layer norms with biases, and two experts that a sparse mixer chooses."""

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.mistral import MIXTRAL
from pyllm.families.rope import read_rope, rope_parameters, with_rope_parameters
from pyllm.families.spec import LayerSpec, ModelSpec


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Phi-3.5-MoE describes."""
    config.refuse_unless(num_experts_per_tok=2)
    config = config.with_defaults(rms_norm_eps=1e-5, num_key_value_heads=8, num_local_experts=16, num_experts_per_tok=2)
    norm, bias = read_norm(config, kind="layer", bias=True), config.flag("attention_bias", False)
    tolerance = 2 * config.number("router_jitter_noise", 0.01)
    routing = read_routing(config, normalised=False, scores="sparse_mixer", tolerance=tolerance)
    window = config.optional_integer("sliding_window")
    attention = read_attention(config, bias=bias, output_bias=bias, window=window)
    layer = LayerSpec(
        attention=attention,
        feed_forward=read_feed_forward(config, routing=routing),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    rope = read_rope(_with_attention_factor(config), attention.head_size, theta=1_000_000.0)
    has_head_bias = config.flag("lm_head_bias", False)
    return read_model(config, [layer] * num_layers(config), [rope], head_bias=has_head_bias)


def _with_attention_factor(config: Config) -> Config:
    """The factor of cosines and sines under its usual name; it is the same for short and long contexts."""
    parameters = rope_parameters(config)
    if "short_mscale" not in parameters:
        return config
    factor = parameters.positive("short_mscale")
    parameters.refuse_unless(long_mscale=factor)
    return with_rope_parameters(config, attention_factor=factor)


FAMILY = Family(architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"), read=read, tensors=MIXTRAL.tensors)
