"""Layers of Mamba (arXiv 2312.00752), as several families have them: their fields and the names of their tensors."""

from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.spec import NormSpec, SelectiveScanSpec
from pyllm.families.tensor_names import TensorNames


def read_selective_scan(config: Config, norm: NormSpec | None = None) -> SelectiveScanSpec:
    """The layer that the fields `mamba_...` describe, as those of Jamba; `norm` as in the spec."""
    config.refuse_unless(hidden_act="silu")
    hidden = config.integer("hidden_size")
    is_automatic = "mamba_dt_rank" not in config or config.equals("mamba_dt_rank", "auto")
    return SelectiveScanSpec(
        size=config.integer("mamba_d_inner", config.integer("mamba_expand", 2) * hidden),
        state_size=config.integer("mamba_d_state", 16),
        step_rank=-(-hidden // 16) if is_automatic else config.integer("mamba_dt_rank"),
        width=config.integer("mamba_d_conv", 4, least=2, most=8),
        bias=config.flag("mamba_proj_bias", False),
        has_convolution_bias=config.flag("mamba_conv_bias", True),
        norm=norm,
    )


def with_selective_scan(names: TensorNames, layer: str) -> TensorNames:
    """The names with those of such a layer, whose tensors begin with `layer`."""
    return replace(
        names,
        parts={
            **names.parts,
            "recurrence.convolution": f"{layer}.conv1d",
            "recurrence.step": f"{layer}.dt_proj",
            "recurrence.decay_scale": f"{layer}.A_log",
            "recurrence.skip": f"{layer}.D",
            "recurrence.rate_norm": f"{layer}.dt_layernorm",
            "recurrence.input_norm": f"{layer}.b_layernorm",
            "recurrence.readout_norm": f"{layer}.c_layernorm",
            "recurrence.output": f"{layer}.out_proj",
        },
        stacked={**names.stacked, f"{layer}.in_proj": _INPUTS, f"{layer}.x_proj": _SELECTION},
        bare=names.bare | {f"{layer}.A_log", f"{layer}.D"},
    )


def with_gguf_selective_scan(names: TensorNames) -> TensorNames:
    """llama.cpp's names with those of such a layer."""
    return replace(
        names,
        parts={
            **names.parts,
            "recurrence.convolution": "ssm_conv1d",
            "recurrence.step": "ssm_dt",
            "recurrence.decay_scale": "ssm_a",
            "recurrence.skip": "ssm_d",
            "recurrence.rate_norm": "ssm_dt_norm",
            "recurrence.input_norm": "ssm_b_norm",
            "recurrence.readout_norm": "ssm_c_norm",
            "recurrence.output": "ssm_out",
        },
        stacked={**names.stacked, "ssm_in": _INPUTS, "ssm_x": _SELECTION},
        bare=names.bare | {"ssm_a", "ssm_d"},
    )


GGUF_SELECTIVE_SCAN = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_dt_rank",
    "ssm.inner_size": "mamba_d_inner",
}
"""The keys of a GGUF file for such layers, as `GgufNames.fields` has them."""
_INPUTS = ("recurrence.value", "recurrence.gate")
_SELECTION = ("recurrence.rate", "recurrence.selection")
