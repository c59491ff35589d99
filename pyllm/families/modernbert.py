"""ModernBERT (arXiv 2412.13663): an encoder with pre-norms, rotations and gates; most layers have windows, of a RoPE of
their own. The first layer takes the normalised embedding as it is.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.bert import GGUF_ENCODER_FIELDS, GGUF_ENCODER_NAMES
from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    layer_types,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.rope import read_rope
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import GATE_UP, GGUF_PARTS, QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json describes, without its heads."""
    config.refuse_unless(is_decoder=False)
    norm = read_norm(config, "norm_eps", kind="layer", bias=config.flag("norm_bias", False))
    bias = config.flag("attention_bias", False)
    full = read_attention(config, bidirectional=True, bias=bias, output_bias=bias)
    sliding = replace_struct(full, rope=1, window=config.integer("local_attention", 128) // 2 + 1)
    feed_forward = read_feed_forward(
        config.with_defaults(hidden_activation="gelu"), "hidden_activation", bias=config.flag("mlp_bias", False)
    )
    every = config.integer("global_attn_every_n_layers", 3)
    layers = [
        LayerSpec(
            attention=sliding if kind == "sliding_attention" else full,
            feed_forward=feed_forward,
            attention_norm=norm if index else None,
            feed_forward_norm=norm,
        )
        for index, kind in enumerate(layer_types(config, lambda index: index % every != 0))
    ]
    thetas = {
        "full_attention": config.positive("global_rope_theta", 160_000.0),
        "sliding_attention": config.positive("local_rope_theta", 10_000.0),
    }
    ropes = [read_rope(config, full.head_size, theta=theta, layer_type=kind) for kind, theta in thetas.items()]
    return read_model(
        config.replaced(tie_word_embeddings=True),  # It has no head.
        layers,
        ropes,
        embedding_norm=norm,
        norm=norm,
    )


def _complete(config: Config) -> Config:
    names = {
        "norm_eps": "layer_norm_eps",
        "local_attention": "sliding_window",
        "global_attn_every_n_layers": "sliding_window_pattern",
        "global_rope_theta": "rope_theta",
        "local_rope_theta": "rope_local_base_freq",
    }
    return config.renamed(**names).without("rope_theta")


FAMILY = Family(
    architectures=("ModernBertModel", "ModernBertForMaskedLM"),
    read=read,
    tensors=TensorNames(
        roots=("", "model."),
        embedding="embeddings.tok_embeddings",
        embedding_norm="embeddings.norm",
        norm="final_norm",
        parts={
            "attention_norm": "attn_norm",
            "attention.output": "attn.Wo",
            "feed_forward_norm": "mlp_norm",
            "feed_forward.down": "mlp.Wo",
        },
        stacked={"attn.Wqkv": QUERY_KEY_VALUE, "mlp.Wi": GATE_UP},
    ),
    gguf=GgufNames(
        architectures=("modern-bert",),
        tensors=replace(
            GGUF_ENCODER_NAMES,
            end_norm="",
            parts=GGUF_PARTS,
            stacked={"attn_qkv": QUERY_KEY_VALUE, "ffn_up": GATE_UP},
            derived=(*GGUF_ENCODER_NAMES.derived, "cls.norm.weight"),
        ),
        fields=GGUF_ENCODER_FIELDS | {"hidden_activation": "hidden_activation"},
        complete=_complete,
    ),
)
