"""Apertus (arXiv 2509.14233): Llama with query and key norms, and xIELU, an activation with learned factors."""

from msgspec.structs import replace

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
from pyllm.families.rope import rope_parameters
from pyllm.families.spec import XIELU_BETA, LayerSpec, ModelSpec
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Apertus describes."""
    config.refuse_unless(hidden_act="xielu")
    config = config.with_defaults(rms_norm_eps=1e-5)
    if not len(rope_parameters(config)):
        config = config.with_defaults(rope_parameters=_ROPE)
    bias, norm = config.flag("attention_bias", False), read_norm(config)
    attention = read_attention(config, bias=bias, output_bias=bias, query_key_norm=norm)
    feed_forward = read_feed_forward(config.without("hidden_act"), activation="xielu", gated=False)
    layers = [
        LayerSpec(
            attention=attention,
            feed_forward=replace(feed_forward, xielu=factors),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for factors in _factors(config)
    ]
    return read_model(config, layers)


def _factors(config: Config) -> list[tuple[float, float] | None]:
    """The learned factors of each layer, which GGUF has as fields; None where they are tensors."""
    count = num_layers(config)
    if "xielu_positive" not in config:
        return [None] * count
    if any(beta != XIELU_BETA for beta in config.items("xielu_beta", count)):
        raise config.error("xielu_beta", config.value("xielu_beta"), f"{XIELU_BETA} in each layer")
    positive, negative = (
        [Config({name: value}, config.place).number(name) for value in config.items(name, count)]
        for name in ("xielu_positive", "xielu_negative")
    )
    return list(zip(positive, negative, strict=True))


# The default of transformers, for files without any.
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_FACTORS = {"feed_forward.positive": "mlp.act_fn.alpha_p", "feed_forward.negative": "mlp.act_fn.alpha_n"}

FAMILY = Family(
    architectures=("ApertusForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS
        | _FACTORS
        | {"attention_norm": "attention_layernorm", "feed_forward_norm": "feedforward_layernorm"},
        bare=frozenset(_FACTORS.values()),
        derived=(".act_fn.beta", ".act_fn.eps"),  # the same in every model
    ),
    gguf=GgufNames(
        architectures=("apertus",),
        fields={
            "xielu.alpha_p": "xielu_positive",
            "xielu.alpha_n": "xielu_negative",
            "xielu.beta": "xielu_beta",
        },
        complete=lambda config: config.replaced(hidden_act="xielu"),
    ),
)
