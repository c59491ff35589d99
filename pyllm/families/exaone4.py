"""EXAONE 4 (arXiv 2507.11407): post-norms only, query and key norms; a model with windows has RoPE in them alone."""

from msgspec.structs import replace

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
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensors import POST_NORM_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of EXAONE 4 describes."""
    window = None if "sliding_window" in config.nulls else config.integer("sliding_window", 4096)
    norm = read_norm(config, epsilon=config.positive("rms_norm_eps", 1e-5))
    full = read_attention(config, query_key_norm=norm, rope=0 if window is None else None)
    sliding = replace(full, rope=0, window=window)

    def slides(index: int) -> bool:
        return window is not None and (index + 1) % config.integer("sliding_window_pattern", 4) != 0

    layers = [
        LayerSpec(
            attention=sliding if kind == "sliding_attention" else full,
            feed_forward=read_feed_forward(config),
            attention_output_norm=norm,
            feed_forward_output_norm=norm,
        )
        for kind in layer_types(config, slides)
    ]
    return read_model(config, layers)


def _complete(config: Config) -> Config:
    """Without the field, a GGUF file has no window, and a config.json the default one."""
    return config if "sliding_window" in config else config.replaced(sliding_window=None)


FAMILY = Family(
    architectures=("Exaone4ForCausalLM",),
    read=read,
    tensors=TensorNames(parts=POST_NORM_PARTS),
    gguf=GgufNames(architectures=("exaone4",), complete=_complete),
)
