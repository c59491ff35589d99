"""EXAONE 4 (arXiv 2507.11407): post-norms only, query and key norms; a model with windows has RoPE in them alone; and
K-EXAONE (arXiv 2601.01739): the same with pre-norms, and experts as in DeepSeek V3.
"""

from msgspec.structs import replace

from pyllm.families.config import Config
from pyllm.families.family import (
    GGUF_DEEPSEEK_EXPERTS,
    Family,
    GgufNames,
    layer_types,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
    with_deepseek_experts,
    without_further_layers,
)
from pyllm.families.spec import LayerSpec, ModelSpec
from pyllm.families.tensor_names import LLAMA_PARTS, POST_NORM_PARTS, TensorNames


def read(config: Config) -> ModelSpec:
    """The model that a config.json of EXAONE 4 describes."""
    return _read(config, has_pre_norms=False)


def read_moe(config: Config) -> ModelSpec:
    """The model that a config.json of K-EXAONE describes."""
    config = config.with_defaults(first_k_dense_replace=1, routed_scaling_factor=2.5).replaced(
        n_shared_experts=config.integer("num_shared_experts", 1)
    )
    return with_deepseek_experts(config, _read(config, has_pre_norms=True))


def _read(config: Config, has_pre_norms: bool) -> ModelSpec:
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
            attention_norm=norm if has_pre_norms else None,
            attention_output_norm=None if has_pre_norms else norm,
            feed_forward_norm=norm if has_pre_norms else None,
            feed_forward_output_norm=None if has_pre_norms else norm,
        )
        for kind in layer_types(config, slides)
    ]
    return read_model(config, layers)


def _complete(config: Config) -> Config:
    """Without the field, a GGUF file has no window, and a config.json the default one."""
    return config if "sliding_window" in config else config.replaced(sliding_window=None)


EXAONE4 = Family(
    architectures=("Exaone4ForCausalLM",),
    read=read,
    tensors=TensorNames(parts=POST_NORM_PARTS),
    gguf=GgufNames(architectures=("exaone4",), complete=_complete),
)
_CORRECTION = "mlp.e_score_correction"
EXAONE_MOE = Family(
    architectures=("ExaoneMoeForCausalLM",),
    read=read_moe,
    tensors=TensorNames(parts=LLAMA_PARTS | {"feed_forward.correction": _CORRECTION}, bare=frozenset({_CORRECTION})),
    gguf=GgufNames(
        architectures=("exaone-moe",),
        fields=GGUF_DEEPSEEK_EXPERTS | {"expert_shared_count": "num_shared_experts"},
        complete=without_further_layers,
    ),
)
