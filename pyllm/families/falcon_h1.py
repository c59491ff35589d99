"""Falcon-H1 (arXiv 2507.22448): attention and Mamba-2's state space on one input in each layer, with multipliers."""

from collections.abc import Iterator
from dataclasses import replace as replace_names
from itertools import chain

from msgspec.structs import replace

from pyllm.families.bamba import BAMBA
from pyllm.families.config import Config
from pyllm.families.family import (
    Family,
    GgufNames,
    num_layers,
    read_attention,
    read_feed_forward,
    read_model,
    read_norm,
)
from pyllm.families.spec import LayerSpec, ModelSpec, StateSpaceSpec
from pyllm.families.state_space import (
    GGUF_STATE_SPACE,
    read_state_space,
    with_gguf_head_size,
    with_gguf_state_space,
)
from pyllm.families.tensor_names import GGUF_NAMES

_STATE_SPACE_PARTS = ("gate", "value", "input", "readout", "step")
"""Those that `ssm_multipliers` multiply, in its order."""


def read_falcon_h1(config: Config) -> ModelSpec:
    """The model that a config.json of Falcon-H1 describes."""
    config = config.with_defaults(rms_norm_eps=1e-5)
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    layer = LayerSpec(
        attention=read_attention(config, bias=bias, output_bias=bias),
        recurrence=_read_state_space(config, norm.epsilon),
        feed_forward=read_feed_forward(config, bias=config.flag("mlp_bias", False)),
        attention_norm=norm,
        feed_forward_norm=norm,
        factors={name: factor for name, factor in _factors(config) if factor != 1},
    )
    return read_model(
        config,
        [layer] * num_layers(config),
        embedding_scale=config.positive("embedding_multiplier", 1.0),
        logit_scale=config.positive("lm_head_multiplier", 1.0),
    )


def _read_state_space(config: Config, epsilon: float) -> StateSpaceSpec:
    config.with_defaults(projectors_bias=False).refuse_unless(projectors_bias=config.flag("mamba_proj_bias", False))
    wide = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    heads, size = config.integer("mamba_n_heads", 128), config.integer("mamba_d_ssm", wide)
    if size % heads:
        raise config.error("mamba_d_ssm", size, f"a multiple of mamba_n_heads, {heads}")
    spec = read_state_space(config.replaced(mamba_d_head=size // heads), epsilon)
    groups = spec.groups if config.flag("mamba_rms_norm", False) else 0
    return replace(spec, norm_groups=groups, gate_first=not config.flag("mamba_norm_before_gate", True))


def _factors(config: Config) -> Iterator[tuple[str, float]]:
    """The parameters that multipliers change, with their factors: a multiplier of an input does not change a bias."""
    attention, key = config.positive("attention_in_multiplier", 1.0), config.positive("key_multiplier", 1.0)
    gate, down = _multipliers(config, "mlp_multipliers", 2)
    state_space = config.positive("ssm_in_multiplier", 1.0)
    of_outputs = {
        "attention.query": 1.0,
        "attention.key": key,
        "attention.value": 1.0,
        "attention.output": config.positive("attention_out_multiplier", 1.0),
        "recurrence.output": config.positive("ssm_out_multiplier", 1.0),
        "feed_forward.gate": gate,
        "feed_forward.down": down,
    }
    parts = _multipliers(config, "ssm_multipliers", len(_STATE_SPACE_PARTS))
    of_outputs |= {f"recurrence.{part}": factor for part, factor in zip(_STATE_SPACE_PARTS, parts, strict=True)}
    of_inputs = {f"attention.{part}": attention for part in ("query", "key", "value")}
    of_inputs |= {f"recurrence.{part}": state_space for part in _STATE_SPACE_PARTS}
    return chain(
        ((f"{part}.weight", factor * of_inputs.get(part, 1.0)) for part, factor in of_outputs.items()),
        ((f"{part}.bias", factor) for part, factor in of_outputs.items()),
    )


def _multipliers(config: Config, name: str, count: int) -> tuple[float, ...]:
    return config.numbers(name, count) if name in config else (1.0,) * count


def _complete(config: Config) -> Config:
    """Add the fields of llama.cpp's models: a gate is before the norm, and weights include the multipliers."""
    return with_gguf_head_size(config).replaced(
        mamba_d_ssm=config.integer("ssm_inner_size"),
        mamba_norm_before_gate=False,
        projectors_bias=config.flag("mamba_proj_bias"),
    )


FAMILY = Family(
    architectures=("FalconH1ForCausalLM",),
    read=read_falcon_h1,
    tensors=BAMBA,
    gguf=GgufNames(
        architectures=("falcon-h1",),
        tensors=with_gguf_state_space(replace_names(GGUF_NAMES, bare=GGUF_NAMES.bare | {"ffn_norm"})),
        fields=GGUF_STATE_SPACE,
        complete=_complete,
    ),
)
