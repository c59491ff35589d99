"""`Family`, the description of one family, and readers of the fields that most families share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.rope import longest_context, read_rope
from pyllm.families.spec import (
    ACTIVATIONS,
    Activation,
    AttentionSpec,
    ExpertGroups,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
    RopeSpec,
    RoutingSpec,
    SharedExpertSpec,
)
from pyllm.families.tensor_names import GGUF_NAMES, HUGGINGFACE_NAMES, TensorNames

MAX_LAYERS = 1024
LINEAR_KINDS = ("linear_attention", "full_attention")
"""The types of layers in a model most of whose layers keep a state."""
MAX_EXPERTS = 1024
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")  # names of their number
_BEST_OF_GROUP = {"softmax": 1, "sigmoid": 2}  # DeepSeek V2 and V3 score a group by so many of its experts.
GGUF_SCORES = {"softmax": 1, "sigmoid": 2}
"""llama.cpp's numbers of an expert's scores."""
GGUF_EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
"""The keys of a GGUF file for experts, as `GgufNames.fields` has them."""
GGUF_DEEPSEEK_EXPERTS = GGUF_EXPERTS | {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_gating_func": "expert_gating_func",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "nextn_predict_layers",
}
"""The same for experts as in DeepSeek V3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufNames:
    """The names that describe a family in llama.cpp's files.

    - `architectures`: values of `general.architecture`.
    - `fields`: the family's keys, without the architecture prefix, and the config.json field for each; beside the keys
      that all families share (`pyllm/checkpoint/gguf_config.py`).
    - `complete`: adds config.json fields that these files do not have.
    """

    architectures: tuple[str, ...]
    tensors: TensorNames = GGUF_NAMES
    fields: Mapping[str, str] = field(default_factory=dict)
    complete: Callable[[Config], Config] = lambda config: config


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranker:
    """A text model that is asked whether a document answers a query, in a `template` with {query} and {document}.

    The names of such models have `name`, in lower case; `words` are the answers: not relevant, relevant.
    """

    name: str
    words: tuple[str, str]
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models of one kind. `architectures` are names in config.json; `read` returns the model that a config describes.

    `read` raises `ConfigError`, with the name of the field, for features of the family that are not supported.
    """

    architectures: tuple[str, ...]
    read: Callable[[Config], ModelSpec]
    tensors: TensorNames = HUGGINGFACE_NAMES
    gguf: GgufNames | None = None
    reranker: Reranker | None = None

    def spec(self, config: Config) -> ModelSpec:
        """The model that `read` returns; `is_causal` false is refused unless all layers attend to whole sequences.

        Raises:
            ConfigError: as `read`.
        """
        spec = self.read(config)
        is_encoder = "is_causal" in config and self.read(config.without("is_causal")).is_bidirectional
        if not is_encoder and not all(_sees_all(layer) for layer in spec.layers):
            config.refuse_unless(is_causal=True)
        return spec


def _sees_all(layer: LayerSpec) -> bool:
    attention = layer.attention
    return attention is not None and attention.bidirectional and attention.window is None and layer.recurrence is None


def read_attention(config: Config, **features: Any) -> AttentionSpec:
    """The heads, their size and the usual scale, head_size ** -0.5; `features` override fields of `AttentionSpec`.

    With `is_causal` false tokens attend to later ones, too: an embedding model made of a text model (gte-Qwen2).
    """
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads, {heads}")
    head_size = config.integer("head_dim", max(1, hidden // heads))
    fields = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size, "scale": head_size**-0.5}
    return AttentionSpec(**fields | {"bidirectional": not config.flag("is_causal", True)} | features)


def alibi_slopes(heads: int, greatest: float = 8.0) -> tuple[float, ...]:
    """The slope of each head (ALiBi, arXiv 2108.12409): powers of two down to `2 ** -greatest`.

    The exponents of the first heads, as many as a power of two, are multiples of a step; those of the others lie
    halfway between.
    """
    count = 1 << heads.bit_length() - 1
    step = greatest / count
    exponents = [step * (head + 1 if head < count else head - count + 0.5) for head in range(heads)]
    return tuple(2.0**-exponent for exponent in exponents)


def read_activation(config: Config, name: str) -> Activation:
    """The activation that a field names."""
    activation = config.text(name, "silu")
    if activation not in ACTIVATIONS:
        raise config.error(name, activation, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def read_feed_forward(config: Config, name: str = "hidden_act", **features: Any) -> FeedForwardSpec:
    """The gated feed-forward layer; the field `name` has its activation, `features` override fields of the spec."""
    activation, size = read_activation(config, name), config.integer("intermediate_size")
    return FeedForwardSpec(**{"size": size, "activation": activation} | features)


def read_routing(config: Config, normalised: bool, **features: Any) -> RoutingSpec:
    """The rule of a router: the number of experts, and how many of them process each token.

    `features` override fields of the spec.
    """
    name = next((name for name in _EXPERTS if name in config), _EXPERTS[-1])
    experts, active = config.integer(name, most=MAX_EXPERTS), config.integer("num_experts_per_tok")
    if active > experts:
        raise config.error("num_experts_per_tok", active, f"at most {name}, {experts}")
    return RoutingSpec(**{"experts": experts, "active": active, "normalised": normalised} | features)


def read_deepseek_routing(config: Config, scores: Literal["softmax", "sigmoid"] = "sigmoid") -> RoutingSpec:
    """The routing of DeepSeek V3, with a correction for the choice, or with a softmax that of V2, which has none."""
    config.refuse_unless(expert_gating_func=GGUF_SCORES[scores])
    best = _BEST_OF_GROUP[scores]
    routing = read_routing(config, config.flag("norm_topk_prob", True))
    count, active = config.integer("n_group", 1), config.integer("topk_group", 1)
    size = routing.experts // count
    if size * count != routing.experts or size < best:
        raise config.error("n_group", count, f"a number of groups of {best} or more of {routing.experts} experts")
    if active > count or active * size < routing.active:
        raise config.error("topk_group", active, f"at most {count}, with {routing.active} experts in as many groups")
    shared = config.integer("n_shared_experts", 0 if "n_shared_experts" in config.nulls else 1, least=0)
    return replace_struct(
        routing,
        scores=scores,
        factor=config.positive("routed_scaling_factor", 1.0),
        correction=scores == "sigmoid",
        groups=ExpertGroups(count=count, active=active, best=best) if count > 1 else None,
        float32=True,
        shared=SharedExpertSpec(size=shared * config.integer("moe_intermediate_size")) if shared else None,
    )


def with_deepseek_experts(config: Config, spec: ModelSpec, routing: RoutingSpec | None = None) -> ModelSpec:
    """A copy with experts from layer `first_k_dense_replace` on, or where `mlp_layer_types` says so.

    Without a `routing` they are DeepSeek V3's.
    """
    have_experts = expert_layers(config, len(spec.layers))
    routing, size = routing or read_deepseek_routing(config), config.integer("moe_intermediate_size")
    return with_experts(spec, routing, size, have_experts.__getitem__)


def expert_layers(config: Config, count: int) -> list[bool]:
    """Whether each layer has experts: where `mlp_layer_types` says so, or from `first_k_dense_replace` on."""
    first = config.integer("first_k_dense_replace", 0, least=0)
    if "mlp_layer_types" not in config:
        return [index >= first for index in range(count)]
    kinds = config.texts("mlp_layer_types")
    if len(kinds) < count or not set(kinds) <= {"dense", "sparse"}:
        raise config.error("mlp_layer_types", list(kinds), f"dense or sparse for each of {count} layers")
    return [kind == "sparse" for kind in kinds[:count]]


def with_experts(
    spec: ModelSpec,
    routing: RoutingSpec,
    size: int,
    has_experts: Callable[[int], bool] = lambda _: True,
    **features: Any,
) -> ModelSpec:
    """A copy with experts of a size in place of some feed-forward layers, by the indices of the layers.

    `features` override other fields of these layers.
    """
    layers = (
        replace_struct(layer, feed_forward=replace_struct(layer.feed_forward, size=size, routing=routing, **features))
        if layer.feed_forward is not None and has_experts(index)
        else layer
        for index, layer in enumerate(spec.layers)
    )
    return replace_struct(spec, layers=tuple(layers))


def read_norm(config: Config, name: str = "rms_norm_eps", **features: Any) -> NormSpec:
    """The norm with the epsilon in the field `name`."""
    return NormSpec(**{"epsilon": config.positive(name, 1e-6 if name == "rms_norm_eps" else 1e-5)} | features)


def num_layers(config: Config) -> int:
    """The number of layers."""
    return config.integer("num_hidden_layers", most=MAX_LAYERS)


def without_further_layers(config: Config) -> Config:
    """A copy for a GGUF file without the layers at the end that predict further tokens."""
    further = config.integer("nextn_predict_layers", 0, least=0)
    return config.replaced(num_hidden_layers=num_layers(config) - further)


def layer_types(
    config: Config, pattern: Callable[[int], int], kinds: Sequence[str] = ("full_attention", "sliding_attention")
) -> list[str]:
    """The type of each layer, from the field layer_types; without it, `kinds[pattern(index)]`."""
    count = num_layers(config)
    if "layer_types" not in config:
        return [kinds[pattern(index)] for index in range(count)]
    types: list[str] = config.items("layer_types", count)
    for kind in types:
        if kind not in kinds:  # a value of any JSON type
            raise config.error("layer_types", kind, f"a list of {' and '.join(kinds)}")
    return types


def of_types(
    values: Sequence[Any], types: Sequence[str], kinds: Sequence[str] = ("full_attention", "sliding_attention")
) -> list[Any]:
    """The value of the first layer of each kind, of the values of all layers; the first value where there is none."""
    return [values[types.index(kind) if kind in types else 0] for kind in kinds]


def kv_sources(config: Config, types: Sequence[str], shared: int) -> list[int | None]:
    """The layer whose keys and values each layer reads: of the last `shared`, the last one of their type before these.

    Raises:
        ConfigError: there is none.
    """
    own = len(types) - shared
    sources: list[int | None] = [None] * max(own, 0)
    for kind in types[len(sources) :]:
        source = next((layer for layer in reversed(range(own)) if types[layer] == kind), None)
        if source is None:
            raise config.error("num_kv_shared_layers", shared, f"fewer: no earlier layer has {kind}")
        sources.append(source)
    return sources


def read_model(
    config: Config, layers: Sequence[LayerSpec], ropes: Sequence[RopeSpec] | None = None, **features: Any
) -> ModelSpec:
    """The model with these layers; all layers share one rotation unless `ropes` are given."""
    if ropes is None:
        head_size = next(layer.attention.head_size for layer in layers if layer.attention is not None)
        ropes = (read_rope(config, head_size),)
    fields = {
        "architecture": config.items("architectures", 1)[0],
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": config.integer("hidden_size"),
        "max_position_embeddings": longest_context(config),
        "layers": tuple(layers),
        "norm": layers[0].attention_norm or layers[0].attention_output_norm,
        "ropes": tuple(ropes),
        "tie_word_embeddings": config.flag("tie_word_embeddings", False),
    }
    return ModelSpec(**fields | features)
