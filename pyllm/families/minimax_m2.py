"""MiniMax-M2: experts chosen by sigmoids, query and key norms over all heads together, RoPE on a part of each head."""

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.mistral import MIXTRAL
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of MiniMax-M2 describes."""
    config = config.with_defaults(head_dim=128)
    if "rotary_dim" in config:
        config = config.with_defaults(partial_rotary_factor=config.integer("rotary_dim") / config.integer("head_dim"))
    norm = read_norm(config)
    routing = read_routing(config, normalised=True, scores="sigmoid", correction=True, float32=True)
    layer = LayerSpec(
        attention=read_attention(config, query_key_norm=norm, norm_over="all"),
        feed_forward=read_feed_forward(config, routing=routing),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    rope = read_rope(config, layer.own_attention.head_size, theta=5_000_000.0)
    return read_model(config, [layer] * num_layers(config), [rope])


_CORRECTION = "block_sparse_moe.e_score_correction"
FAMILY = Family(
    architectures=("MiniMaxM2ForCausalLM",),
    read=read,
    tensors=TensorNames(
        parts={**MIXTRAL.tensors.parts, "feed_forward.correction": _CORRECTION}, bare=frozenset({_CORRECTION})
    ),
    gguf=GgufNames(
        architectures=("minimax-m2",), fields=GGUF_EXPERTS | {"expert_feed_forward_length": "intermediate_size"}
    ),
)
