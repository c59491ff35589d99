"""Models without attention: Mamba (arXiv 2312.00752), Falcon Mamba (arXiv 2410.05355), Mamba-2 (arXiv 2405.21060)."""

from pyllm.families.config import Config
from pyllm.families.family import Family, GgufNames, num_layers, read_model, read_norm
from pyllm.families.selective_scan import (
    GGUF_SELECTIVE_SCAN,
    read_selective_scan,
    with_gguf_selective_scan,
    with_selective_scan,
)
from pyllm.families.spec import LayerSpec, ModelSpec, RecurrenceSpec
from pyllm.families.state_space import (
    GGUF_STATE_SPACE,
    read_state_space,
    with_gguf_head_size,
    with_gguf_state_space,
    with_state_space,
)
from pyllm.families.tensor_names import GGUF_NAMES, TensorNames

_CONTEXT = 1 << 20
"""Nothing limits the context of these models. llama.cpp's files have this number."""
_EPSILON = "layer_norm_epsilon"
_OWN_NAMES = {
    "mamba_d_state": "state_size",
    "mamba_d_conv": "conv_kernel",
    "mamba_expand": "expand",
    "mamba_proj_bias": "use_bias",
    "mamba_conv_bias": "use_conv_bias",
}
_SCAN = {"mamba_d_inner": "intermediate_size", "mamba_dt_rank": "time_step_rank"}
_SPACE = {"mamba_n_heads": "num_heads", "mamba_d_head": "head_dim", "mamba_n_groups": "n_groups"}
"""Own names of the fields that `read_selective_scan` and `read_state_space` read."""
_NAMES = TensorNames(
    roots=("backbone.",), embedding="embeddings", norm="norm_f", parts={"attention_norm": "norm"}, bare=frozenset()
)


def read_mamba(config: Config) -> ModelSpec:
    """The model that a config.json of Mamba describes, or with `mixer_rms_eps` one of Falcon Mamba.

    The latter's norms within the layers have no weights.
    """
    config = config.renamed(**_OWN_NAMES, **_SCAN).with_defaults(tie_word_embeddings=True)
    norm = read_norm(config, "mixer_rms_eps", weight=False) if "mixer_rms_eps" in config else None
    return _read(config, read_selective_scan(config, norm))


def read_falcon_mamba(config: Config) -> ModelSpec:
    """The same of Falcon Mamba."""
    return read_mamba(config.with_defaults(mixer_rms_eps=1e-6))


def read_mamba2(config: Config) -> ModelSpec:
    """The same of Mamba-2."""
    defaults = {"mamba_d_head": 64, "mamba_n_groups": 8, "mamba_d_state": 128}
    config = config.renamed(**_OWN_NAMES, **_SPACE).with_defaults(**defaults)
    return _read(config, read_state_space(config, read_norm(config, _EPSILON).epsilon))


def _read(config: Config, recurrence: RecurrenceSpec) -> ModelSpec:
    config = config.with_defaults(max_position_embeddings=_CONTEXT)
    layer = LayerSpec(recurrence=recurrence, attention_norm=read_norm(config, _EPSILON))
    return read_model(config, [layer] * num_layers(config), ropes=())


def _complete(config: Config) -> Config:
    """Add the fields that llama.cpp's files have under other names."""
    config = config.renamed(**{_EPSILON: "rms_norm_eps"})
    if not config.flag("ssm_dt_b_c_rms", False):
        return config
    # llama.cpp has one epsilon for all norms.
    epsilon = config.positive(_EPSILON)
    return config.replaced(mixer_rms_eps=epsilon, architectures=list(FALCON_MAMBA.architectures))


MAMBA = Family(
    architectures=("MambaForCausalLM",),
    read=read_mamba,
    tensors=with_selective_scan(_NAMES, "mixer"),
    gguf=GgufNames(
        architectures=("mamba",),
        tensors=with_gguf_selective_scan(GGUF_NAMES),
        fields=GGUF_SELECTIVE_SCAN | {"ssm.dt_b_c_rms": "ssm_dt_b_c_rms"},
        complete=_complete,
    ),
)
FALCON_MAMBA = Family(
    architectures=("FalconMambaForCausalLM",),
    read=read_falcon_mamba,
    tensors=with_selective_scan(_NAMES, "mixer"),
)
MAMBA2 = Family(
    architectures=("Mamba2ForCausalLM",),
    read=read_mamba2,
    tensors=with_state_space(_NAMES, "mixer"),
    gguf=GgufNames(
        architectures=("mamba2",),
        tensors=with_gguf_state_space(GGUF_NAMES),
        fields=GGUF_STATE_SPACE,
        complete=lambda config: with_gguf_head_size(config).renamed(**{_EPSILON: "rms_norm_eps"}),
    ),
)
