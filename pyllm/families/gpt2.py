"""GPT-2, and GPT-BigCode (StarCoder, arXiv 2305.06161): learned positions, layer norms, biases everywhere.

GPT-BigCode has one key/value head for all query heads. GPT-Neo has windows in some layers, and does not scale scores.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

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
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, QUERY_KEY_VALUE, TensorNames


def read_gpt2(config: Config) -> ModelSpec:
    """The model that a config.json of GPT-2 describes."""
    config = with_standard_names(config)
    spec = _read(config.with_defaults(activation_function="gelu_new"), _attention(config))
    if not config.flag("scale_attn_by_inverse_layer_idx", False):
        return spec
    scaled = (
        replace_struct(layer, attention=replace_struct(layer.own_attention, scale=layer.own_attention.scale / number))
        for number, layer in enumerate(spec.layers, start=1)
    )
    return replace_struct(spec, layers=tuple(scaled))


def read_gpt_bigcode(config: Config) -> ModelSpec:
    """The model that a config.json of GPT-BigCode describes."""
    config = with_standard_names(config).with_defaults(activation_function="gelu_pytorch_tanh")
    if config.flag("multi_query", True):
        config = config.replaced(num_key_value_heads=1)
    return _read(config, _attention(config))


def read_gpt_neo(config: Config) -> ModelSpec:
    """The model that a config.json of GPT-Neo describes."""
    config = with_standard_names(config.renamed(num_hidden_layers="num_layers", num_attention_heads="num_heads"))
    full = read_attention(config, output_bias=True, rope=None, scale=1.0)
    local = replace_struct(full, window=config.integer("window_size", 256))
    spec = _read(config.with_defaults(activation_function="gelu_new"), full)
    kinds = config.items("attention_layers", len(spec.layers))
    if wrong := [kind for kind in kinds if kind not in ("global", "local")]:
        raise config.error("attention_layers", wrong[0], "a list of global and local")
    layers = (
        replace_struct(layer, attention=local if kind == "local" else full)
        for layer, kind in zip(spec.layers, kinds, strict=True)
    )
    return replace_struct(spec, layers=tuple(layers))


def with_standard_names(config: Config) -> Config:
    """A copy with the names that later classes have, for fields of GPT-2 and its relatives without grouped queries."""
    config = config.without("num_key_value_heads").renamed(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="n_positions",
        layer_norm_eps="layer_norm_epsilon",
    )
    own_size = config.optional_integer("n_inner") or config.optional_integer("intermediate_size")
    return config.replaced(intermediate_size=own_size or 4 * config.integer("hidden_size"))


def _attention(config: Config) -> AttentionSpec:
    attention = read_attention(config, bias=True, output_bias=True, rope=None)
    return attention if config.flag("scale_attn_weights", True) else replace_struct(attention, scale=1.0)


def _read(config: Config, attention: AttentionSpec) -> ModelSpec:
    config.refuse_unless(add_cross_attention=False)
    norm = read_norm(config, "layer_norm_eps", kind="layer", bias=True)
    layer = LayerSpec(
        attention=attention,
        feed_forward=read_feed_forward(config, "activation_function", gated=False, bias=True),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(
        config.with_defaults(tie_word_embeddings=True),
        [layer] * num_layers(config),
        ropes=(),
        positions=config.integer("max_position_embeddings"),
    )


_PARTS = {
    "attention_norm": "ln_1",
    "attention.output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
_NAMES = TensorNames(
    roots=("transformer.", ""),
    embedding="wte",
    position_embedding="wpe",
    norm="ln_f",
    layer="h.{}.",
    parts=_PARTS,
    stacked={"attn.c_attn": QUERY_KEY_VALUE},
    derived=(".attn.bias", ".attn.masked_bias"),
)
_GGUF_TENSORS = replace(GGUF_NAMES, stacked={"attn_qkv": QUERY_KEY_VALUE})

GPT2 = Family(
    architectures=("GPT2LMHeadModel",),
    read=read_gpt2,
    tensors=replace(
        _NAMES,
        transposed=frozenset({*QUERY_KEY_VALUE, "attention.output", "feed_forward.up", "feed_forward.down"}),
    ),
    gguf=GgufNames(architectures=("gpt2",), tensors=_GGUF_TENSORS),
)
GPT_BIGCODE = Family(
    architectures=("GPTBigCodeForCausalLM",),
    read=read_gpt_bigcode,
    tensors=replace(_NAMES, grouped=frozenset({"attn.c_attn"})),
    gguf=GgufNames(architectures=("starcoder",), tensors=_GGUF_TENSORS),
)
GPT_NEO = Family(
    architectures=("GPTNeoForCausalLM",),
    read=read_gpt_neo,
    tensors=replace(
        _NAMES,
        parts=_PARTS
        | {
            "attention.query": "attn.attention.q_proj",
            "attention.key": "attn.attention.k_proj",
            "attention.value": "attn.attention.v_proj",
            "attention.output": "attn.attention.out_proj",
        },
        stacked={},
        derived=(".attn.attention.bias", ".attn.attention.masked_bias"),
    ),
)
