"""GLM-4.5 to 4.7 (arXiv 2508.06471): experts as in DeepSeek V3 after some dense layers; RoPE on half of each head."""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensors import GGUF_NAMES, GGUF_PARTS


def read(config: Config) -> ModelSpec:
    """The model that a config.json of GLM-4.5 describes."""
    config = config.with_defaults(partial_rotary_factor=0.5, first_k_dense_replace=1, rms_norm_eps=1e-5)
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    head_norm = norm if config.flag("use_qk_norm", False) else None
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, query_key_norm=head_norm),
        feed_forward=read_feed_forward(config),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return with_deepseek_experts(config, read_model(config, [layer] * num_layers(config)))


def _complete(config: Config) -> Config:
    """Leave out the layers at the end that predict further tokens."""
    further = config.integer("nextn_predict_layers", 0, least=0)
    return config.replaced(num_hidden_layers=num_layers(config) - further)


FAMILY = Family(
    architectures=("Glm4MoeForCausalLM",),
    read=read,
    gguf=GgufNames(
        architectures=("glm4moe",),
        tensors=replace(GGUF_NAMES, parts=GGUF_PARTS | {"feed_forward_norm": "post_attention_norm"}),
        fields=GGUF_DEEPSEEK_EXPERTS | {"nextn_predict_layers": "nextn_predict_layers"},
        complete=_complete,
    ),
)
