"""StableLM 2 and 3B (arXiv 2402.17834): layer norms, RoPE on a part of each head, some with parallel layers."""

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import LayerSpec, ModelSpec


def read(config: Config) -> ModelSpec:
    """The model that a config.json of StableLM describes."""
    config.refuse_unless(qk_layernorm=False)  # each head has a norm of its own
    config = config.with_defaults(partial_rotary_factor=0.25).without("head_dim")
    norm = read_norm(config, "layer_norm_eps", kind="layer", bias=True)
    parallel = config.flag("use_parallel_residual", False)
    layer = LayerSpec(
        attention=read_attention(config, bias=config.flag("use_qkv_bias", False)),
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        feed_forward_norm=None if parallel else norm,
        parallel=parallel,
    )
    return read_model(config, [layer] * num_layers(config))


FAMILY = Family(
    architectures=("StableLmForCausalLM",),
    read=read,
    gguf=GgufNames(
        architectures=("stablelm",),
        fields={"use_parallel_residual": "use_parallel_residual"},
        complete=lambda config: config.replaced(use_qkv_bias=config.flag("attention_bias")),
    ),
)
