"""OPT (arXiv 2205.01068): learned positions, layer norms, biases everywhere, a rectifier; BioGPT (arXiv 2210.10341):
the same with a scaled embedding and GELU; XGLM (arXiv 2112.10668): as BioGPT, with sines and cosines of positions.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import Family, num_layers, read_attention, read_feed_forward, read_model
from pyllm.families.spec import LayerSpec, ModelSpec, NormSpec
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames


def read_opt(config: Config) -> ModelSpec:
    """The model that a config.json of OPT describes; OPT-350M, whose norms come after the layers, is refused."""
    hidden, bias = config.integer("hidden_size"), config.flag("enable_bias", True)
    config.refuse_unless(do_layer_norm_before=True, word_embed_proj_dim=hidden, _remove_final_layer_norm=False)
    scaled = config.flag("layer_norm_elementwise_affine", True)
    norm = NormSpec(epsilon=1e-5, kind="layer", weight=scaled, bias=scaled)
    config = config.renamed(hidden_act="activation_function").with_defaults(hidden_act="relu")
    return _read(config.replaced(intermediate_size=config.integer("ffn_dim")), norm, bias)


def read_biogpt(config: Config) -> ModelSpec:
    """The model that a config.json of BioGPT describes."""
    config = config.with_defaults(hidden_act="gelu")
    scale = config.integer("hidden_size") ** 0.5 if config.flag("scale_embedding", True) else 1.0
    spec = _read(config, NormSpec(epsilon=1e-5, kind="layer", bias=True), bias=True)
    return replace_struct(spec, embedding_scale=scale)


def read_xglm(config: Config) -> ModelSpec:
    """The model that a config.json of XGLM describes; padding that has a position of its own is refused."""
    config.refuse_unless(add_cross_attention=False)
    config.integer("pad_token_id", 1, least=0, most=_FIRST_POSITION - 1)
    if (size := config.integer("d_model")) % 2:
        raise config.error("d_model", size, "an even number")
    config = config.renamed(
        hidden_size="d_model",
        num_hidden_layers="num_layers",
        num_attention_heads="attention_heads",
        hidden_act="activation_function",
    )
    return replace_struct(
        read_biogpt(config.replaced(intermediate_size=config.integer("ffn_dim"))), sinusoids=_FIRST_POSITION
    )


def _read(config: Config, norm: NormSpec, bias: bool) -> ModelSpec:
    config = config.without("num_key_value_heads").with_defaults(tie_word_embeddings=True)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias, rope=None),
        feed_forward=read_feed_forward(config, gated=False, bias=bias),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    positions = config.integer("max_position_embeddings")
    return read_model(config, [layer] * num_layers(config), ropes=(), positions=positions)


_FIRST_POSITION = 2  # of the first token: those before are for padding
OPT = Family(
    architectures=("OPTForCausalLM",),
    read=read_opt,
    tensors=TensorNames(
        roots=("model.decoder.", "decoder.", ""),
        norm="final_layer_norm",
        skipped_positions=_FIRST_POSITION,
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
BIOGPT = Family(
    architectures=("BioGptForCausalLM",),
    read=read_biogpt,
    tensors=replace(OPT.tensors, roots=("biogpt.", ""), norm="layer_norm", heads=("output_projection",)),
)
XGLM = Family(
    architectures=("XGLMForCausalLM",),
    read=read_xglm,
    tensors=replace(OPT.tensors, roots=("model.", ""), norm="layer_norm"),
)
