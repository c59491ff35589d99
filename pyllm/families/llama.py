"""Llama 2, 3 and 3.1 onwards (arXiv 2302.13971, 2307.09288, 2407.21783): pre-norm, grouped queries, gated SiLU.

Near relatives are here, too: Seed-OSS; Arcee, with a squared rectifier and no gate; Helium, with RoPE of adjacent
pairs; CWM, with windows; EXAONE 3 (arXiv 2408.03541) and InternLM 2 (arXiv 2403.17297), with other names; EuroBERT
(arXiv 2503.05500) and NVIDIA's Llama Nemotron Embed, which are encoders.
"""

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_EXPERTS,
    Family,
    GgufNames,
    layer_types,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    read_routing,
)
from pyllm.families.rope import rope_parameters
from pyllm.families.spec import AttentionSpec, LayerSpec, ModelSpec
from pyllm.families.tensor_names import GGUF_NAMES, GGUF_PARTS, QUERY_KEY_VALUE, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of Llama describes."""
    config.refuse_unless(sliding_window=None)
    return _read(config, _attention(config))


def read_seed_oss(config: Config) -> ModelSpec:
    """The model that a config.json of Seed-OSS describes."""
    config = config.with_defaults(head_dim=128)
    bias, output_bias = config.flag("attention_bias", True), config.flag("attention_out_bias", False)
    return _read(config, read_attention(config, bias=bias, output_bias=output_bias))


def read_arcee(config: Config) -> ModelSpec:
    """The model that a config.json of Arcee's AFM describes."""
    config = config.with_defaults(hidden_act="relu2", rms_norm_eps=1e-5)
    return _read(config, _attention(config), gated=False)


def read_helium(config: Config) -> ModelSpec:
    """The model that a config.json of Helium describes."""
    config = config.with_defaults(head_dim=128, rms_norm_eps=1e-8)
    return _read(config, read_attention(config, bias=config.flag("attention_bias", False)))


def read_cwm(config: Config) -> ModelSpec:
    """The model that a config.json of CWM describes."""
    config = config.with_defaults(head_dim=128, rms_norm_eps=1e-5)
    if not len(rope_parameters(config)):
        config = config.with_defaults(rope_parameters=_CWM_ROPE)
    spec, window = _read(config, read_attention(config)), config.integer("sliding_window", 8192)
    full = spec.layers[0]
    sliding = replace_struct(full, attention=replace_struct(full.own_attention, window=window))
    types = layer_types(config, lambda index: index % 4 != 0)
    return replace_struct(spec, layers=tuple(sliding if kind == "sliding_attention" else full for kind in types))


def read_exaone(config: Config) -> ModelSpec:
    """The model that a config.json of EXAONE 3 or 3.5 describes."""
    return read(
        config.renamed(
            num_hidden_layers="num_layers",
            hidden_act="activation_function",
            rms_norm_eps="layer_norm_epsilon",
        )
    )


def read_internlm2(config: Config) -> ModelSpec:
    """The model that a config.json of InternLM 2 or 2.5 describes; biases are refused."""
    config.refuse_unless(bias=False)
    return read(config)


def read_encoder(config: Config) -> ModelSpec:
    """The model that a config.json of EuroBERT or Llama Nemotron Embed describes."""
    config.refuse_unless(pooling="avg")
    return read(config.with_defaults(rms_norm_eps=1e-5).replaced(is_causal=False))


def _attention(config: Config) -> AttentionSpec:
    bias = config.flag("attention_bias", False)
    return read_attention(config, bias=bias, output_bias=bias)


def _read(config: Config, attention: AttentionSpec, gated: bool = True) -> ModelSpec:
    norm = read_norm(config)
    # GGUF files describe Mixtral as a Llama with experts.
    has_experts = config.integer("num_local_experts", 0, least=0) > 0
    routing = read_routing(config, normalised=True) if has_experts else None
    layer = LayerSpec(
        attention=attention,
        feed_forward=read_feed_forward(config, bias=config.flag("mlp_bias", False), routing=routing, gated=gated),
        attention_norm=norm,
        feed_forward_norm=norm,
    )
    return read_model(config, [layer] * num_layers(config))


_CWM_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FAMILY = Family(
    architectures=("LlamaForCausalLM",),
    read=read,
    # llama.cpp rotates adjacent pairs, and its converter reorders the rows of Llama's query and key for that.
    gguf=GgufNames(architectures=("llama",), tensors=replace(GGUF_NAMES, interleaved=True), fields=GGUF_EXPERTS),
)
SEED_OSS = Family(
    architectures=("SeedOssForCausalLM",),
    read=read_seed_oss,
    gguf=GgufNames(
        architectures=("seed_oss",),
        tensors=replace(GGUF_NAMES, parts=GGUF_PARTS | {"feed_forward_norm": "post_attention_norm"}),
    ),
)
ARCEE = Family(
    architectures=("ArceeForCausalLM",),
    read=read_arcee,
    gguf=GgufNames(architectures=("arcee",), tensors=replace(GGUF_NAMES, interleaved=True)),
)
HELIUM = Family(architectures=("HeliumForCausalLM",), read=read_helium, tensors=TensorNames(interleaved=True))
CWM = Family(architectures=("CwmForCausalLM",), read=read_cwm)
EXAONE = Family(
    architectures=("ExaoneForCausalLM",),
    read=read_exaone,
    tensors=TensorNames(
        roots=("transformer.", ""),
        embedding="wte",
        norm="ln_f",
        layer="h.{}.",
        parts={
            "attention_norm": "ln_1",
            "attention.query": "attn.attention.q_proj",
            "attention.key": "attn.attention.k_proj",
            "attention.value": "attn.attention.v_proj",
            "attention.output": "attn.attention.out_proj",
            "feed_forward_norm": "ln_2",
            "feed_forward.gate": "mlp.c_fc_0",
            "feed_forward.up": "mlp.c_fc_1",
            "feed_forward.down": "mlp.c_proj",
        },
    ),
    gguf=GgufNames(architectures=("exaone",)),
)
INTERNLM2 = Family(
    architectures=("InternLM2ForCausalLM",),
    read=read_internlm2,
    tensors=TensorNames(
        embedding="tok_embeddings",
        heads=("output", "language_model.output"),
        parts={
            "attention_norm": "attention_norm",
            "attention.output": "attention.wo",
            "feed_forward_norm": "ffn_norm",
            "feed_forward.gate": "feed_forward.w1",
            "feed_forward.up": "feed_forward.w3",
            "feed_forward.down": "feed_forward.w2",
        },
        stacked={"attention.wqkv": QUERY_KEY_VALUE},
        grouped=frozenset({"attention.wqkv"}),
    ),
    gguf=GgufNames(architectures=("internlm2",), tensors=replace(GGUF_NAMES, interleaved=True)),
)
EUROBERT = Family(
    architectures=("EuroBertModel", "EuroBertForMaskedLM"),
    read=read_encoder,
    gguf=GgufNames(architectures=("eurobert",)),
)
LLAMA_EMBED = Family(
    architectures=("LlamaBidirectionalModel",),
    read=read_encoder,
    gguf=GgufNames(architectures=("llama-embed",), tensors=replace(GGUF_NAMES, interleaved=True)),
)
