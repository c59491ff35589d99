"""Nemotron 3, 4 and Minitron (arXiv 2402.16819, 2407.14679): layer norms scaled by `1 + w`, a squared rectifier;
Jais 2, with plain layer norms.
"""

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
from pyllm.families.spec import LayerSpec, ModelSpec, NormSpec


def read_nemotron(config: Config) -> ModelSpec:
    """The model that a config.json of Nemotron describes."""
    config = config.with_defaults(partial_rotary_factor=0.5)
    return _read(config, read_norm(config, "norm_eps", kind="layer", bias=True, unit_offset=True), has_bias=False)


def read_jais2(config: Config) -> ModelSpec:
    """The model that a config.json of Jais 2 describes."""
    return _read(config, read_norm(config, "layer_norm_eps", kind="layer", bias=True), has_bias=True)


def _read(config: Config, norm: NormSpec, has_bias: bool) -> ModelSpec:
    bias = config.flag("attention_bias", has_bias)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias),
        feed_forward=read_feed_forward(
            config.with_defaults(hidden_act="relu2"), gated=False, bias=config.flag("mlp_bias", has_bias)
        ),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


NEMOTRON = Family(
    architectures=("NemotronForCausalLM",),
    read=read_nemotron,
    gguf=GgufNames(architectures=("nemotron",), fields={"attention.layer_norm_epsilon": "norm_eps"}),
)
JAIS2 = Family(
    architectures=("Jais2ForCausalLM",),
    read=read_jais2,
    gguf=GgufNames(architectures=("jais2",)),
)
