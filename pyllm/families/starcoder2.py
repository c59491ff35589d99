"""StarCoder 2 (arXiv 2402.19173): layer norms and biases everywhere, a feed-forward layer without gate, windows."""

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
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of StarCoder 2 describes."""
    config = config.with_defaults(hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)
    bias, norm = config.flag("use_bias", True), read_norm(config, "norm_epsilon", kind="layer", bias=True)
    window = config.optional_integer("sliding_window")
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias, window=window),
        feed_forward=read_feed_forward(config, gated=False, bias=bias),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


FAMILY = Family(
    architectures=("Starcoder2ForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS | {"feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"},
    ),
    gguf=GgufNames(
        architectures=("starcoder2",),
        fields={"attention.layer_norm_epsilon": "norm_epsilon"},
        complete=lambda config: config.replaced(use_bias=config.flag("attention_bias")),
    ),
)
