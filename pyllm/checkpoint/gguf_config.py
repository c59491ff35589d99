"""Translates the fields of a GGUF file into a config.json. Knows no tensor and no tokenizer.

The keys are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and of llama.cpp's converter.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.family import MAX_LAYERS, Family

PLACE = "the GGUF file"  # in errors

_FIELDS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.causal": "is_causal",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
_ROPE_FIELDS = {
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attn_factor": "attention_factor",
    "attn_factor": "attention_factor",
}
ROPE_FACTORS = {
    "rope_freqs.weight": "factors",
    "rope_factors_long.weight": "long_factor",
    "rope_factors_short.weight": "short_factor",
}
"""The tensors whose values belong to the configuration, and what they are there."""


def gguf_config(
    family: Family,
    fields: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: Mapping[str, Sequence[float]],
) -> Config:
    """The configuration in the fields of a file, with the shapes of its tensors and the values of `ROPE_FACTORS`.

    Raises:
        ConfigError: a field needs an unsupported feature, or differs between layers.
    """
    assert family.gguf is not None
    architecture = fields["general.architecture"]
    prefix = f"{architecture}."
    own = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    known = family.gguf.fields
    config = {
        name: _one(f"{prefix}{key}", own[key]) for key, name in _FIELDS.items() if key in own and key not in known
    }
    # Some keys of a family have no prefix.
    config |= {name: value for key, name in known.items() if (value := own.get(key, fields.get(key))) is not None}
    config |= _of_tensors(shapes)
    config |= _of_layers(config, shapes)
    config["architectures"] = [family.architectures[0]]
    _check(own, config, architecture, known)
    sections = own.get("rope.dimension_sections")
    if family.gguf.tensors.interleaved and isinstance(sections, list) and all(sections[:2]):
        # llama.cpp rotates the halves of a head then, whose rows its converter has moved (GLM-4.1V).
        text = f"{prefix}rope.dimension_sections, as models for images have them, are not supported"
        raise ConfigError(f"{text}: use the safetensors")
    if "rope.dimension_count" in own:
        rotary_size = Config(own, PLACE).integer("rope.dimension_count")
        config["partial_rotary_factor"] = rotary_size / Config(config, PLACE).integer("head_dim")
    pattern = own.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern
    if not config.get("sliding_window", True):
        del config["sliding_window"]
    if rope := _rope(own, rope_factors):
        config["rope_scaling"] = rope
    return family.gguf.complete(Config(config, PLACE))


def _of_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    if "token_embd.weight" not in shapes:
        raise ConfigError("the GGUF file has no tensor token_embd.weight")
    return {
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes,
        "attention_gate_size": shapes.get("blk.0.attn_gate.weight", (0,))[0],
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        "mamba_proj_bias": any(name.endswith(".ssm_in.bias") for name in shapes),
        "mamba_rms_norm": any(name.endswith(".ssm_norm.weight") for name in shapes),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in shapes),
        "num_ln_in_parallel_attn": 1 + ("blk.0.attn_norm_2.weight" in shapes),
    }


def _of_layers(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """For each layer, whether it has attention, an index of tokens, values beside keys, feed-forward, and experts."""
    layers = range(min(count, MAX_LAYERS)) if isinstance(count := config.get("num_hidden_layers"), int) else ()
    has_up = [any(f"blk.{layer}.{up}.weight" in shapes for up in ("ffn_up", "ffn_up_exps")) for layer in layers]
    return {
        "attention_layers": [f"blk.{layer}.attn_k.weight" in shapes for layer in layers],
        "index_layers": [f"blk.{layer}.indexer.attn_k.weight" in shapes for layer in layers],
        "value_layers": [f"blk.{layer}.attn_v.weight" in shapes for layer in layers],
        "feed_forward_layers": has_up,
        "expert_layers": [f"blk.{layer}.ffn_gate_inp.weight" in shapes for layer in layers],
    }


def _check(own: Mapping[str, Any], config: dict[str, Any], architecture: str, known: Container[str]) -> None:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        config.setdefault("head_dim", hidden // heads)
    neutral = {"expert_count": 0, "attention.value_length": config.get("head_dim")}
    for name, supported in neutral.items():
        if name not in known and own.get(name, supported) != supported:
            raise ConfigError(f"{architecture}.{name} = {own[name]!r:.80} is not supported, only {supported}")


def _rope(own: Mapping[str, Any], factors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The parameters of RoPE scaling; empty without scaling.

    As in llama.cpp, a factor without a type is linear, a factor of 0 is none, and the older `rope.scale_linear` is the
    factor only where `rope.scaling.factor` is missing, whatever the type.
    """
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear"))
    kind = own.get("rope.scaling.type", "linear" if factor else "none")
    known: Collection[str] = ("none", "linear", "yarn", "longrope")
    if kind not in known:
        raise ConfigError(f"rope.scaling.type {kind!r:.80} is not supported, only {', '.join(known)}")
    parameters = {
        name: own[f"rope.scaling.{key}"] for key, name in _ROPE_FIELDS.items() if f"rope.scaling.{key}" in own
    }
    if factor:
        parameters["factor"] = factor
    elif kind == "linear":
        kind = "none"
    if multiplier := own.get("rope.scaling.yarn_log_multiplier"):
        parameters |= {"mscale": multiplier, "mscale_all_dim": multiplier}
    parameters |= {ROPE_FACTORS[tensor]: list(values) for tensor, values in factors.items()}
    if "factors" in parameters:
        kind = "factors"
    elif "long_factor" in parameters:
        kind = "longrope"
    return {} if kind == "none" else parameters | {"rope_type": kind}


def _one(name: str, value: Any) -> Any:
    """The value of a field, which some files have as a list of one value per layer, 0 where a layer lacks the part."""
    if not isinstance(value, list):
        return value
    value = [number for number in value if number != 0] or value
    if len(set(map(repr, value))) != 1:
        raise ConfigError(f"{name} differs between layers, which is not supported")
    return value[0]
