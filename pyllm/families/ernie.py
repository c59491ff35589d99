"""ERNIE 4.5, dense and with experts and shared ones: Llama with the pairs of RoPE side by side."""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
    with_experts,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, ModelSpec, SharedExpertSpec
from pyllm.families.tensor_names import GGUF_NAMES, LLAMA_PARTS, TensorNames


def read_dense(config: Config) -> ModelSpec:
    """The model that a config.json of ERNIE 4.5 without experts describes."""
    return _read(config.with_defaults(head_dim=128))


def read_moe(config: Config) -> ModelSpec:
    """The model that a config.json of ERNIE 4.5 with experts describes."""
    config.refuse_unless(use_bias=False)
    config = config.with_defaults(moe_num_experts=64, moe_k=6)
    shared = config.integer("moe_num_shared_experts", 2, least=0)
    size = config.integer("moe_intermediate_size", 1536)
    routing = read_routing(
        config.replaced(num_experts=config.integer("moe_num_experts"), num_experts_per_tok=config.integer("moe_k")),
        normalised=True,
        correction=True,
        float32=True,
        shared=SharedExpertSpec(size=shared * size) if shared else None,
    )
    count, interval = num_layers(config), config.integer("moe_layer_interval", 1)
    first, last = (
        config.integer("moe_layer_start_index", 1, least=0),
        config.integer("moe_layer_end_index", -1, least=-1),
    )
    end = count if last == -1 else last + 1
    return with_experts(
        _read(config), routing, size, lambda index: first <= index < end and (index + 1) % interval == 0
    )


def _read(config: Config) -> ModelSpec:
    config = config.with_defaults(rms_norm_eps=1e-5, tie_word_embeddings=True)
    norm, bias = read_norm(config), config.flag("use_bias", False)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias),
        feed_forward=read_feed_forward(config, bias=bias),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    rope = read_rope(config, layer.own_attention.head_size, theta=500_000.0)
    return read_model(config, [layer] * num_layers(config), [rope])


_CORRECTION = "mlp.moe_statics.e_score_correction"
_GGUF_NAMES = replace(GGUF_NAMES, interleaved=True)
ERNIE = Family(
    architectures=("Ernie4_5ForCausalLM",),
    read=read_dense,
    tensors=TensorNames(interleaved=True),
    gguf=GgufNames(
        architectures=("ernie4_5",),
        tensors=_GGUF_NAMES,
        complete=lambda config: config.replaced(use_bias=config.flag("attention_bias")),
    ),
)
ERNIE_MOE = Family(
    architectures=("Ernie4_5_MoeForCausalLM",),
    read=read_moe,
    tensors=TensorNames(
        parts=LLAMA_PARTS | {"feed_forward.correction": _CORRECTION}, bare=frozenset({_CORRECTION}), interleaved=True
    ),
    gguf=GgufNames(
        architectures=("ernie4_5-moe",),
        tensors=_GGUF_NAMES,
        fields={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "moe_num_shared_experts",
            "leading_dense_block_count": "moe_layer_start_index",
            "interleave_moe_layer_step": "moe_layer_interval",
        },
    ),
)
