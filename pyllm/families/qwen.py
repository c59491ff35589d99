"""Qwen 2 and 2.5 (arXiv 2407.10671): Llama with biases, dense or with experts and a shared one; Qwen 3 (arXiv
2505.09388): with norms of query and key, dense or with experts. Mellum 2 is Qwen 3 with experts
and with windows that have a RoPE of their own.
"""

from collections.abc import Callable

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    GGUF_SCORES,
    Family,
    GgufNames,
    Reranker,
    layer_types,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
    with_deepseek_experts,
    with_experts,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.tensor_names import EXPERTS, LLAMA_PARTS, TensorNames


def read_qwen2(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 2 or 2.5 describes."""
    return _read(config, read_attention(config, bias=True))


def read_qwen2_moe(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 2 MoE describes; some layers may be dense."""
    first = config.integer("max_window_layers", 28, least=0)
    attention = read_attention(config, bias=config.flag("qkv_bias", True))
    spec = _read(config, attention, lambda index: index % 2 == 0 and index < first)
    shared = SharedExpertSpec(size=config.integer("shared_expert_intermediate_size", 5632), gated=True)
    return _with_experts(config.with_defaults(num_experts=60, num_experts_per_tok=4), spec, shared)


def read_qwen3(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 3 describes."""
    config = config.with_defaults(head_dim=128)
    bias = config.flag("attention_bias", False)
    attention = read_attention(config, bias=bias, output_bias=bias, query_key_norm=read_norm(config))
    return _read(config, attention)


def read_qwen3_moe(config: Config) -> ModelSpec:
    """The model that a config.json of Qwen 3 MoE describes; some layers may be dense."""
    return _with_experts(config, read_qwen3(config))


def read_mellum(config: Config) -> ModelSpec:
    """The model that a config.json of Mellum 2 describes; some layers may be dense."""
    config = config.with_defaults(norm_topk_prob=True, sliding_window=1024, first_k_dense_replace=0)
    spec = read_qwen3(config.without("sliding_window", "layer_types"))
    window, head_size = config.integer("sliding_window"), spec.attention.head_size
    layers = (
        replace(layer, attention=replace(layer.own_attention, rope=1, window=window))
        if kind == "sliding_attention"
        else layer
        for layer, kind in zip(spec.layers, layer_types(config, lambda _: False), strict=True)
    )
    kinds = ("full_attention", "sliding_attention")
    ropes = tuple(read_rope(config, head_size, layer_type=kind) for kind in kinds)
    routing = read_routing(config, config.flag("norm_topk_prob"))
    return with_deepseek_experts(config, replace(spec, layers=tuple(layers), ropes=ropes), routing)


def _complete_mellum(config: Config) -> Config:
    """A copy with the two sections of RoPE that a config.json has: that of windows is never scaled."""
    config.refuse_unless(expert_gating_func=GGUF_SCORES["softmax"])
    full = config.section("rope_scaling").with_defaults(rope_type="default")
    base = config.positive("rope_local_base_freq", config.positive("rope_theta", 10_000.0))
    sections = {"full_attention": {name: full.value(name) for name in full}, "sliding_attention": {"rope_theta": base}}
    return config.replaced(norm_topk_prob=True, rope_parameters=sections)


def _with_experts(config: Config, spec: ModelSpec, shared: SharedExpertSpec | None = None) -> ModelSpec:
    routing = read_routing(config, config.flag("norm_topk_prob", False), shared=shared)
    step, without = config.integer("decoder_sparse_step", 1), set(config.integers("mlp_only_layers"))
    size = config.integer("moe_intermediate_size")
    return with_experts(spec, routing, size, lambda index: index not in without and (index + 1) % step == 0)


def _read(config: Config, attention: AttentionSpec, slides: Callable[[int], bool] | None = None) -> ModelSpec:
    """The model; with windows, layers slide by `slides`, or from `max_window_layers` on."""
    norm, window = read_norm(config), None
    if config.flag("use_sliding_window", False):
        window = config.optional_integer("sliding_window")
    first = config.integer("max_window_layers", 28, least=0)
    slides = slides or (lambda index: index >= first)
    layers = [
        LayerSpec(
            attention=replace(attention, window=window if kind == "sliding_attention" else None),
            feed_forward=read_feed_forward(config),
            attention_norm=norm,
            feed_forward_norm=norm,
        )
        for kind in layer_types(config, lambda index: window is not None and slides(index))
    ]
    return read_model(config, layers)


SHARED_EXPERT_PARTS = {
    "feed_forward.shared.gate": "mlp.shared_expert.gate_proj",
    "feed_forward.shared.up": "mlp.shared_expert.up_proj",
    "feed_forward.shared.down": "mlp.shared_expert.down_proj",
    "feed_forward.shared_gate": "mlp.shared_expert_gate",
}
QWEN2 = Family(
    architectures=("Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    read=read_qwen2,
    gguf=GgufNames(architectures=("qwen2", "qwen2vl")),
)
QWEN2_MOE = Family(
    architectures=("Qwen2MoeForCausalLM",),
    read=read_qwen2_moe,
    tensors=TensorNames(parts=LLAMA_PARTS | SHARED_EXPERT_PARTS),
    gguf=GgufNames(
        architectures=("qwen2moe",),
        fields=GGUF_EXPERTS
        | {
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        complete=lambda config: config.replaced(qkv_bias=config.flag("attention_bias")),
    ),
)
# https://huggingface.co/Qwen/Qwen3-Reranker-0.6B
_RERANKER = Reranker(
    name="qwen3-reranker",
    words=("no", "yes"),
    template=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
)
QWEN3 = Family(
    architectures=("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"),
    read=read_qwen3,
    gguf=GgufNames(architectures=("qwen3", "qwen3vl")),
    reranker=_RERANKER,
)
QWEN3_MOE = Family(
    architectures=("Qwen3MoeForCausalLM",),
    read=read_qwen3_moe,
    gguf=GgufNames(
        architectures=("qwen3moe", "qwen3vlmoe"),
        fields=GGUF_EXPERTS | {"expert_feed_forward_length": "moe_intermediate_size"},
        # GGUF files do not have this field; it is true in every released model.
        complete=lambda config: config.replaced(norm_topk_prob=True),
    ),
)
QWEN3_VL_MOE = Family(
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    read=lambda config: read_qwen3_moe(config.replaced(norm_topk_prob=True)),
    tensors=TensorNames(transposed=frozenset(EXPERTS)),
)
MELLUM = Family(
    architectures=("MellumForCausalLM",),
    read=read_mellum,
    gguf=GgufNames(
        architectures=("mellum",),
        fields=GGUF_EXPERTS
        | {"expert_feed_forward_length": "moe_intermediate_size", "expert_gating_func": "expert_gating_func"},
        complete=_complete_mellum,
    ),
)
