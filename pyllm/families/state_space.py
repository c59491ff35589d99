"""Layers of Mamba-2 (arXiv 2405.21060), as several families have them: their fields and the names of their tensors."""

import math
from dataclasses import replace

from pyllm.families.config import Config
from pyllm.families.spec import StateSpaceSpec
from pyllm.families.tensor_names import TensorNames

MAMBA_LAYERS = ("linear_attention", "mamba")
ATTENTION_LAYERS = ("full_attention", "attention")
"""Names of a layer's kind in `layer_types`: transformers' own one, and an older one."""


def read_state_space(config: Config, epsilon: float) -> StateSpaceSpec:
    """The layer that the fields `mamba_...` describe, as those of Granite 4 and Bamba."""
    heads, head_size = config.integer("mamba_n_heads", 128), _head_size(config)
    groups = config.integer("mamba_n_groups", 1)
    if heads % groups:
        raise config.error("mamba_n_groups", groups, f"a divisor of mamba_n_heads, {heads}")
    config.refuse_unless(hidden_act="silu", mamba_hidden_act="silu")
    return StateSpaceSpec(
        heads=heads,
        head_size=head_size,
        groups=groups,
        state_size=config.integer("mamba_d_state", 256),
        width=config.integer("mamba_d_conv", 4, least=2, most=8),
        epsilon=epsilon,
        bias=config.flag("mamba_proj_bias", False),
        has_convolution_bias=config.flag("mamba_conv_bias", True),
        step_limits=_step_limits(config),
        norm_groups=groups,
    )


def _head_size(config: Config) -> int:
    if "mamba_d_head" in config and not config.equals("mamba_d_head", "auto"):
        return config.integer("mamba_d_head")
    return config.integer("mamba_expand", 2) * config.integer("hidden_size") // config.integer("mamba_n_heads", 128)


def _step_limits(config: Config) -> tuple[float, float]:
    """The least and the largest step. Infinity is no number in JSON: transformers 5 writes a dictionary for it."""
    if "time_step_limit" not in config:
        return 0.0, math.inf
    values = config.items("time_step_limit", 2)
    limits = [value.get("__float__") if isinstance(value, dict) else value for value in values]
    try:
        low, high = (float(str(limit)) for limit in limits)
    except (TypeError, ValueError):
        low = high = math.nan
    if not 0 <= low <= high:
        raise config.error("time_step_limit", values, "the least and the largest step, from 0 on")
    return low, high


def with_state_space(names: TensorNames, layer: str) -> TensorNames:
    """The names with those of such a layer, whose tensors begin with `layer`."""
    return replace(
        names,
        parts={
            **names.parts,
            "recurrence.decay_scale": f"{layer}.A_log",
            "recurrence.step_bias": f"{layer}.dt_bias",
            "recurrence.skip": f"{layer}.D",
            "recurrence.convolution": f"{layer}.conv1d",
            "recurrence.norm": f"{layer}.norm",
            "recurrence.output": f"{layer}.out_proj",
        },
        stacked={**names.stacked, f"{layer}.in_proj": _INPUTS},
        bare=names.bare | {f"{layer}.A_log", f"{layer}.dt_bias", f"{layer}.D"},
    )


def with_gguf_state_space(names: TensorNames) -> TensorNames:
    """llama.cpp's names with those of such a layer."""
    return replace(
        names,
        parts={
            **names.parts,
            "recurrence.decay_scale": "ssm_a",
            "recurrence.step_bias": "ssm_dt.bias",
            "recurrence.skip": "ssm_d",
            "recurrence.convolution": "ssm_conv1d",
            "recurrence.norm": "ssm_norm",
            "recurrence.output": "ssm_out",
        },
        stacked={**names.stacked, "ssm_in": _INPUTS},
        bare=names.bare | {"ssm_a", "ssm_dt.bias", "ssm_d"},
    )


def with_gguf_head_size(config: Config) -> Config:
    """Add the size of heads, of which llama.cpp's files have the product with their number."""
    return config.replaced(mamba_d_head=config.integer("ssm_inner_size") // config.integer("mamba_n_heads"))


GGUF_STATE_SPACE = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": "ssm_inner_size",
}
"""The keys of a GGUF file for such layers, as `GgufNames.fields` has them."""
_INPUTS = tuple(f"recurrence.{part}" for part in ("gate", "value", "input", "readout", "step"))
