"""OPT (arXiv 2205.01068): learned positions, layer norms, biases everywhere, a rectifier."""

from pyllm.families.config import Config
from pyllm.families.family import Family, num_layers, read_attention, read_feed_forward, read_model
from pyllm.families.spec import LayerSpec, ModelSpec, NormSpec
from pyllm.families.tensors import LLAMA_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of OPT describes; OPT-350M, whose norms come after the layers, is refused."""
    hidden, bias = config.integer("hidden_size"), config.flag("enable_bias", True)
    config.refuse_unless(do_layer_norm_before=True, word_embed_proj_dim=hidden, _remove_final_layer_norm=False)
    scaled = config.flag("layer_norm_elementwise_affine", True)
    norm = NormSpec(epsilon=1e-5, kind="layer", weight=scaled, bias=scaled)
    config = config.without("num_key_value_heads").replaced(intermediate_size=config.integer("ffn_dim"))
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias, rope=None),
        feed_forward=read_feed_forward(
            config.with_defaults(activation_function="relu"), "activation_function", gated=False, bias=bias
        ),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(
        config.with_defaults(tie_word_embeddings=True),
        [layer] * num_layers(config),
        ropes=(),
        positions=config.integer("max_position_embeddings"),
    )


FAMILY = Family(
    architectures=("OPTForCausalLM",),
    read=read,
    tensors=TensorNames(
        roots=("model.decoder.", "decoder.", ""),
        norm="final_layer_norm",
        skipped_positions=2,
        parts=LLAMA_PARTS
        | {
            "attention_norm": "self_attn_layer_norm",
            "attention.output": "self_attn.out_proj",
            "feed_forward_norm": "final_layer_norm",
            "feed_forward.up": "fc1",
            "feed_forward.down": "fc2",
        },
    ),
)
