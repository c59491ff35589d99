"""Nemotron-H (arXiv 2504.03624), also with experts (Nemotron 3): each layer is Mamba-2's, attention without positions,
or a feed-forward layer alone.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_deepseek_routing,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import FeedForwardSpec, LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.state_space import (
    ATTENTION_LAYERS,
    GGUF_STATE_SPACE,
    MAMBA_LAYERS,
    read_state_space,
    with_gguf_head_size,
    with_gguf_state_space,
    with_state_space,
)
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, TensorNames

_PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OWN_NAMES = {
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_head": "mamba_head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_state": "ssm_state_size",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
}
"""Own names of the fields that `read_state_space` reads."""


def read_nemotron_h(config: Config) -> ModelSpec:
    """The model that a config.json of Nemotron-H describes."""
    config.refuse_unless(sliding_window=None, residual_in_fp32=False)
    config = config.renamed(**_OWN_NAMES).with_defaults(
        head_dim=128, mamba_n_groups=8, mamba_d_state=128, mamba_d_head=64
    )
    config = config.replaced(mamba_proj_bias=config.flag("use_bias", False))
    norm = read_norm(config, "layer_norm_epsilon")
    attention = read_attention(config, rope=None)
    feed_forward = read_feed_forward(
        config.with_defaults(mlp_hidden_act="relu2"), "mlp_hidden_act", gated=False, bias=config.flag("mlp_bias", False)
    )
    layers = []
    for kind in _layer_kinds(config):
        if kind in MAMBA_LAYERS:
            layers.append(LayerSpec(recurrence=read_state_space(config, norm.epsilon), attention_norm=norm))
        elif kind in ATTENTION_LAYERS:
            layers.append(LayerSpec(attention=attention, attention_norm=norm))
        elif kind == "mlp":
            layers.append(LayerSpec(feed_forward=feed_forward, feed_forward_norm=norm))
        elif kind == "moe":
            layers.append(LayerSpec(feed_forward=_with_experts(config, feed_forward), feed_forward_norm=norm))
        else:  # a value of any JSON type
            known = ", ".join((*MAMBA_LAYERS, *ATTENTION_LAYERS, "mlp", "moe"))
            raise config.error("layers_block_type", kind, f"a list of {known}")
    return read_model(config, layers, norm=norm)


def _with_experts(config: Config, feed_forward: FeedForwardSpec) -> FeedForwardSpec:
    """The layer with experts, as in DeepSeek V3 but without gates; the shared one has a size of its own."""
    config.refuse_unless(moe_latent_size=None, mlp_bias=False)
    config = config.with_defaults(moe_intermediate_size=7688, n_routed_experts=8, num_experts_per_tok=2)
    shared = SharedExpertSpec(size=config.integer("moe_shared_expert_intermediate_size", 7688))
    routing = replace_struct(read_deepseek_routing(config), shared=shared)
    return replace_struct(feed_forward, size=config.integer("moe_intermediate_size"), routing=routing)


def _layer_kinds(config: Config) -> list[str]:
    """The kind of each layer, by a list or by a pattern with a letter for each."""
    if "hybrid_override_pattern" in config:
        return [_PATTERN.get(letter, letter) for letter in config.text("hybrid_override_pattern")]
    return list(config.texts("layers_block_type"))


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files have in other terms."""
    has_attention, has_feed_forward = (
        config.items(name, num_layers(config)) for name in ("attention_layers", "feed_forward_layers")
    )
    feed_forward = "moe" if "num_local_experts" in config else "mlp"
    kinds = [
        "full_attention" if attends else feed_forward if feeds else "linear_attention"
        for attends, feeds in zip(has_attention, has_feed_forward, strict=True)
    ]
    epsilon = config.positive("rms_norm_eps" if "rms_norm_eps" in config else "layer_norm_eps")
    bias = config.flag("mamba_proj_bias")
    return with_gguf_head_size(config).replaced(layers_block_type=kinds, layer_norm_epsilon=epsilon, use_bias=bias)


FAMILY = Family(
    architectures=("NemotronHForCausalLM",),
    read=read_nemotron_h,
    tensors=with_state_space(
        TensorNames(
            roots=("backbone.", "model."),
            embedding="embeddings",
            norm="norm_f",
            parts={
                "attention_norm": "norm",
                "attention.query": "mixer.q_proj",
                "attention.key": "mixer.k_proj",
                "attention.value": "mixer.v_proj",
                "attention.output": "mixer.o_proj",
                "feed_forward_norm": "norm",
                "feed_forward.up": "mixer.up_proj",
                "feed_forward.down": "mixer.down_proj",
                "feed_forward.router": "mixer.gate",
                "feed_forward.correction": "mixer.gate.e_score_correction",
                "feed_forward.experts.up": "mixer.experts.{}.up_proj",
                "feed_forward.experts.down": "mixer.experts.{}.down_proj",
                "feed_forward.shared.up": "mixer.shared_experts.up_proj",
                "feed_forward.shared.down": "mixer.shared_experts.down_proj",
            },
            bare=frozenset({"mixer.gate.e_score_correction"}),
        ),
        "mixer",
    ),
    gguf=GgufNames(
        architectures=("nemotron_h", "nemotron_h_moe"),
        tensors=with_gguf_state_space(replace(GGUF_NAMES, parts=GGUF_PARTS | {"feed_forward_norm": "attn_norm"})),
        fields=GGUF_STATE_SPACE
        | GGUF_DEEPSEEK_EXPERTS
        | {
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "moe_latent_size": "moe_latent_size",
        },
        complete=_complete,
    ),
)
