"""The layers of Mamba-2 (arXiv 2405.21060) as several families have them: their fields and the names of their tensors."""

import math

from pyllm.families.config import Config
from pyllm.families.spec import StateSpaceSpec

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


def state_space_parts(layer: str) -> dict[str, str]:
    """The names of a recurrence's parts, of which those of the input are in `state_space_inputs`."""
    return {
        "recurrence.decay_scale": f"{layer}.A_log",
        "recurrence.step_bias": f"{layer}.dt_bias",
        "recurrence.skip": f"{layer}.D",
        "recurrence.convolution": f"{layer}.conv1d",
        "recurrence.norm": f"{layer}.norm",
        "recurrence.output": f"{layer}.out_proj",
    }


def state_space_inputs(layer: str) -> dict[str, tuple[str, ...]]:
    """The parts of a recurrence's input in their one tensor."""
    parts = ("gate", "value", "input", "readout", "step")
    return {f"{layer}.in_proj": tuple(f"recurrence.{part}" for part in parts)}


def state_space_bare(layer: str) -> frozenset[str]:
    """The tensors that are named without `.weight`."""
    return frozenset({f"{layer}.A_log", f"{layer}.dt_bias", f"{layer}.D"})
