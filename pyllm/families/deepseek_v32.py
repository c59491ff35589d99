"""DeepSeek V3.2 (arXiv 2512.02556) and GLM-5: DeepSeek V3, whose tokens attend to those that an index chooses.

In GLM-5.2 some layers have the choice of the layer before.
"""

from dataclasses import replace as replace_names

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.deepseek import GGUF_DEFAULTS, read_v3
from pyllm.families.family import GGUF_DEEPSEEK_EXPERTS, Family, GgufNames, num_layers
from pyllm.families.latents import (
    GGUF_LATENT_FIELDS,
    GGUF_LATENT_NAMES,
    LATENT_NAMES,
    complete_latent_attention,
)
from pyllm.families.spec import IndexSpec, ModelSpec, NormSpec

_NORM = NormSpec(epsilon=1e-6, kind="layer", bias=True)
_KINDS = {"F": "full", "S": "shared"}  # in `index_topk_pattern`


def read_deepseek(config: Config) -> ModelSpec:
    """The model that a config.json of DeepSeek V3.2 describes."""
    config = config.with_defaults(index_n_heads=64)
    return _with_index(config, ["full"] * num_layers(config), interleaved=False)


def read_glm(config: Config) -> ModelSpec:
    """The model that a config.json of GLM-5 describes."""
    config = config.with_defaults(
        q_lora_rank=2048,
        qk_nope_head_dim=192,
        v_head_dim=256,
        n_group=1,
        topk_group=1,
        rms_norm_eps=1e-5,
        index_n_heads=32,
    )
    return _with_index(config, _kinds(config), interleaved=True)


def _kinds(config: Config) -> list[str]:
    """Whether each layer has an index of its own."""
    count, name = num_layers(config), "index_topk_pattern"
    if "indexer_types" in config:
        name, kinds = "indexer_types", list(config.texts("indexer_types"))
    elif isinstance(pattern := config.value(name), str):
        kinds = [_KINDS.get(letter, letter) for letter in pattern]
    elif pattern is not None:
        kinds = list(config.texts(name))
    else:
        name = "index_skip_topk_offset"
        every, offset = config.integer("index_topk_freq", 1), config.integer("index_skip_topk_offset", 2, least=0)
        kinds = ["full" if max(index - offset + 1, 0) % every == 0 else "shared" for index in range(count)]
    if len(kinds) < count or kinds[0] != "full" or not set(kinds[:count]) <= {"full", "shared"}:
        raise config.error(name, kinds, f"full or shared for each of {count} layers, and the first one full")
    return kinds[:count]


def _with_index(config: Config, kinds: list[str], interleaved: bool) -> ModelSpec:
    config.refuse_unless(indexer_rope_interleave=interleaved)
    spec, source = read_v3(config), 0
    index = IndexSpec(
        heads=config.integer("index_n_heads"),
        size=config.integer("index_head_dim", 128),
        count=config.integer("index_topk", 2048),
        norm=_NORM,
        interleaved=interleaved,
    )
    layers = []
    for number, (layer, kind) in enumerate(zip(spec.layers, kinds, strict=True)):
        source = number if kind == "full" else source
        attention = layer.own_attention
        assert attention.latent is not None, "the attention of DeepSeek V3"
        if index.size < attention.latent.rope_size:
            raise config.error("index_head_dim", index.size, f"at least qk_rope_head_dim, {attention.latent.rope_size}")
        own = replace(index, source=None if kind == "full" else source)
        latent = replace(attention.latent, index=own)
        layers.append(replace(layer, attention=replace(attention, latent=latent, head_size=latent.cached_size)))
    return replace(spec, layers=tuple(layers))


def _complete(config: Config) -> Config:
    return complete_latent_attention(config).with_defaults(**GGUF_DEFAULTS)


def _complete_glm(config: Config) -> Config:
    """Add which layers have an index: files that do not say it have no tensors of it in the others."""
    config = _complete(config)
    layers = config.items("index_flags" if "index_flags" in config else "index_layers", num_layers(config))
    return config.replaced(indexer_types=["full" if has_index else "shared" for has_index in layers])


_FIELDS = (
    GGUF_DEEPSEEK_EXPERTS
    | GGUF_LATENT_FIELDS
    | {
        "attention.indexer.head_count": "index_n_heads",
        "attention.indexer.key_length": "index_head_dim",
        "attention.indexer.top_k": "index_topk",
        "attention.indexer.types": "index_flags",
    }
)
_PARTS = {
    "attention.index_query": "self_attn.indexer.wq_b",
    "attention.index_key": "self_attn.indexer.wk",
    "attention.index_norm": "self_attn.indexer.k_norm",
    "attention.index_weights": "self_attn.indexer.weights_proj",
}
_GGUF_PARTS = {
    "attention.index_query": "indexer.attn_q_b",
    "attention.index_key": "indexer.attn_k",
    "attention.index_norm": "indexer.k_norm",
    "attention.index_weights": "indexer.proj",
}
_NAMES = replace_names(LATENT_NAMES, parts={**LATENT_NAMES.parts, **_PARTS})
_GGUF_NAMES = replace_names(GGUF_LATENT_NAMES, parts={**GGUF_LATENT_NAMES.parts, **_GGUF_PARTS})
DEEPSEEK_V32 = Family(
    architectures=("DeepseekV32ForCausalLM",),
    read=read_deepseek,
    tensors=_NAMES,
    gguf=GgufNames(architectures=("deepseek32",), tensors=_GGUF_NAMES, fields=_FIELDS, complete=_complete),
)
GLM5 = Family(
    architectures=("GlmMoeDsaForCausalLM",),
    read=read_glm,
    tensors=_NAMES,
    gguf=GgufNames(architectures=("glm-dsa",), tensors=_GGUF_NAMES, fields=_FIELDS, complete=_complete_glm),
)
