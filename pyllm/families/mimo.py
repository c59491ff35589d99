"""MiMo V2 (Flash, V2.5): values narrower than keys, and multiplied; in layers with windows sinks and more KV heads; and
experts as in DeepSeek V3, without a shared one.

Of its configuration's windows, transformers counts `sliding_window_size` without the token itself, and llama.cpp the
`sliding_window` with it; each of their files is computed as there.
"""

from dataclasses import replace as replace_names

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    GGUF_SCORES,
    Family,
    GgufNames,
    layer_types,
    num_layers,
    of_types,
    read_attention,
    read_deepseek_routing,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
    without_further_layers,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, LLAMA_PARTS, TensorNames

_KINDS = ("full_attention", "sliding_attention")
_PATTERNS = {
    "hybrid_layer_pattern": ("layer_types", _KINDS),
    "moe_layer_freq": ("mlp_layer_types", ("dense", "sparse")),
}
"""Lists of a 0 or a 1 for each layer in published files, and what transformers has instead."""
_THETAS = {_KINDS[0]: 5_000_000.0, _KINDS[1]: 10_000.0}
_DEFAULTS = {
    "head_dim": 192,
    "v_head_dim": 128,
    "num_key_value_heads": 4,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "attention_value_scale": 0.707,
    "rms_norm_eps": 1e-5,
}


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes, under the names of the published files or those of transformers."""
    config = config.renamed(rms_norm_eps="layernorm_epsilon")
    config = _with_kinds(config.with_defaults(**_DEFAULTS))
    config.refuse_unless(scoring_func="sigmoid", topk_method="noaux_tc", n_shared_experts=0)
    sizes = {f"swa_{name}": config.integer(name) for name in ("head_dim", "v_head_dim", "num_attention_heads")}
    config.refuse_unless(**sizes, add_full_attention_sink_bias=False, add_swa_attention_sink_bias=True)
    norm, kinds = read_norm(config), layer_types(config, lambda index: index > 0 and (index + 1) % 6 != 0)
    kv_heads = config.integer("swa_num_key_value_heads", 2 * config.integer("num_key_value_heads"))
    full, of_sliding = _attention(config), _attention(config.replaced(num_key_value_heads=kv_heads))
    sliding = replace(of_sliding, rope=1, window=_window(config), sinks=True)
    layers = [
        LayerSpec(
            attention=sliding if kind == _KINDS[1] else full,
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in kinds
    ]
    size = config.integer("head_dim")
    ropes = [read_rope(config, size, theta=_THETAS[kind], layer_type=kind) for kind in _KINDS]
    spec = read_model(config, layers, ropes, max_position_embeddings=config.integer("max_position_embeddings"))
    routing = read_deepseek_routing(config.replaced(n_shared_experts=0))
    return with_deepseek_experts(config.with_defaults(first_k_dense_replace=1), spec, routing)


def _attention(config: Config) -> AttentionSpec:
    bias = config.flag("attention_bias", False)
    scale = config.number("attention_value_scale", 1.0)  # null is 1
    size = config.integer("v_head_dim", most=config.integer("head_dim"))
    narrower = None if size == config.integer("head_dim") else size
    return read_attention(config, bias=bias, value_size=narrower, value_scale=scale)


def _window(config: Config) -> int:
    if "sliding_window_size" in config:
        return config.integer("sliding_window_size") + 1
    return config.integer("sliding_window", 129)


def _with_kinds(config: Config) -> Config:
    """A copy with the kinds of layers and their rotations as transformers names them."""
    for name, (other, kinds) in _PATTERNS.items():
        if name in config:
            pattern = config.items(name, num_layers(config))
            if not set(config.integers(name)) <= {0, 1}:
                raise config.error(name, pattern, "0 or 1 for each layer")
            config = config.with_defaults(**{other: [kinds[int(number)] for number in pattern]})
    part = config.positive("partial_rotary_factor", 0.334)
    thetas = (config.positive("rope_theta", _THETAS[_KINDS[0]]), config.positive("swa_rope_theta", _THETAS[_KINDS[1]]))
    ropes = {
        kind: {"rope_theta": theta, "partial_rotary_factor": part} for kind, theta in zip(_KINDS, thetas, strict=True)
    }
    section = config.section("rope_parameters")
    if any(kind in section for kind in _KINDS):
        return config
    for place in (section, config.section("rope_scaling")):
        place.refuse_unless(rope_type="default", type="default")
        if "rope_theta" in place:
            raise config.error("rope_theta", place.value("rope_theta"), "one for each kind of layers")
    return config.replaced(rope_parameters=ropes)


def _complete(config: Config) -> Config:
    """Add what llama.cpp's files have in other terms, or leave out."""
    config = without_further_layers(config.replaced(expert_gating_func=GGUF_SCORES["sigmoid"]))
    kinds = layer_types(config, lambda _: False)
    full, sliding = of_types(config.items("kv_heads", len(kinds)), kinds)
    layers = config.items("expert_layers", num_layers(config))
    local = config.value("rope_local_base_freq") or config.value("rope_theta")
    return config.with_defaults(swa_rope_theta=local, attention_value_scale=1.0).replaced(
        num_key_value_heads=full,
        swa_num_key_value_heads=sliding,
        mlp_layer_types=["sparse" if routed else "dense" for routed in layers],
    )


FAMILY = Family(
    architectures=("MiMoV2FlashForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts=LLAMA_PARTS | {"attention.sinks": "self_attn.attention_sink_bias"},
        aliases={"self_attn.attention_sink_bias": "self_attn.sinks"},
        bare=frozenset({LLAMA_PARTS["feed_forward.correction"], "self_attn.attention_sink_bias", "self_attn.sinks"}),
    ),
    gguf=GgufNames(
        architectures=("mimo2",),
        tensors=replace_names(GGUF_NAMES, parts=GGUF_PARTS | {"attention.sinks": "attn_sinks"}),
        fields=GGUF_DEEPSEEK_EXPERTS
        | {
            "attention.head_count_kv": "kv_heads",
            "attention.value_length": "v_head_dim",
            "attention.value_scale": "attention_value_scale",
        },
        complete=_complete,
    ),
)
