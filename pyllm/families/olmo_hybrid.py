"""OLMo Hybrid: the gated delta rule (arXiv 2412.06464) with negative eigenvalues (arXiv 2411.12537) in most layers,
OLMo 3's attention, mostly without positions, in the others.
"""

from pyllm.families.config import Config
from pyllm.families.family import (
    LINEAR_KINDS,
    Family,
    layer_types,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.rope import read_rope, rope_parameters
from pyllm.families.spec import GatedDeltaSpec, LayerSpec, ModelSpec
from pyllm.families.tensor_names import POST_NORM_PARTS, TensorNames

_NORM_EPSILON = 1e-5  # of the norm within the delta rule, whatever the other norms have


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes."""
    config.refuse_unless(hidden_act="silu")
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    # Published models have no positions, and null for the base of their rotation.
    is_rotated = "rope_theta" in config or "rope_theta" in rope_parameters(config)
    attention = read_attention(
        config, bias=bias, output_bias=bias, query_key_norm=norm, norm_over="all", rope=0 if is_rotated else None
    )
    delta, feed_forward = _read_delta(config), read_feed_forward(config)
    layers = [
        LayerSpec(
            attention=attention, feed_forward=feed_forward, attention_output_norm=norm, feed_forward_output_norm=norm
        )
        if kind == "full_attention"
        else LayerSpec(recurrence=delta, feed_forward=feed_forward, attention_norm=norm, feed_forward_norm=norm)
        for kind in layer_types(config, lambda index: index % 4 == 3, LINEAR_KINDS)
    ]
    ropes = [read_rope(config, attention.head_size)] if is_rotated else []
    return read_model(config, layers, ropes, norm=norm)


def _read_delta(config: Config) -> GatedDeltaSpec:
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    key_heads, value_heads = (config.integer(f"linear_num_{kind}_heads", heads) for kind in ("key", "value"))
    key_size = config.integer("linear_key_head_dim", max(1, int(0.75 * hidden / key_heads)))
    if value_heads % key_heads:
        raise config.error("linear_num_value_heads", value_heads, f"a multiple of {key_heads} key heads")
    return GatedDeltaSpec(
        key_heads=key_heads,
        value_heads=value_heads,
        key_size=key_size,
        value_size=config.integer("linear_value_head_dim", 2 * key_size),
        width=config.integer("linear_conv_kernel_dim", 4, least=2, most=8),
        epsilon=_NORM_EPSILON,
        are_convolutions_apart=True,
        greatest_share=2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0,
    )


_PARTS = POST_NORM_PARTS | {
    **{f"recurrence.{part}": f"linear_attn.{part[0]}_proj" for part in ("query", "key", "value", "gate", "beta")},
    "recurrence.decay": "linear_attn.a_proj",
    "recurrence.decay_scale": "linear_attn.A_log",
    "recurrence.decay_bias": "linear_attn.dt_bias",
    **{f"recurrence.{part}_convolution": f"linear_attn.{part[0]}_conv1d" for part in ("query", "key", "value")},
    "recurrence.norm": "linear_attn.o_norm",
    "recurrence.output": "linear_attn.o_proj",
}
FAMILY = Family(
    architectures=("OlmoHybridForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=_PARTS,
        aliases={"input_layernorm": "attention_layer_norm", "post_attention_layernorm": "feedforward_layer_norm"},
        bare=frozenset({"linear_attn.A_log", "linear_attn.dt_bias"}),
    ),
)
