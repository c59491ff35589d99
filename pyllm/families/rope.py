"""Inverse frequencies of rotary position embeddings, from a model's parameters. Does not know which layers use them.

The kinds and their formulas are those of `modeling_rope_utils.py` in transformers, with one difference: `dynamic` and
`longrope` choose once, by `max_model_len`. transformers chooses by the longest sequence of a batch, so a request's keys
would depend on the other requests, and cached keys would no longer fit.
"""

import math
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.spec import DynamicRope, LayerSpec, LongRope, ModelSpec, RopeSpec

Frequencies = tuple[float, ...]
_LARGEST_THETA = 1e20
_LARGEST_CONTEXT = 2**31 - 1


def read_rope(
    config: Config,
    head_size: int,
    *,
    theta: float = 10_000.0,
    layer_type: str | None = None,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> RopeSpec:
    """The rotation that a configuration describes.

    It is read from `rope_parameters` (transformers 5), or from `rope_scaling` with `rope_theta` (older files), if there
    are any. With a `layer_type` the parameters may be in a section of that name. `theta` is the family's default, and
    `renamed` maps the family's own names of kinds.

    Raises:
        ConfigError: the kind is not supported, or a parameter is missing or out of range.
    """
    parameters = rope_parameters(config)
    if layer_type is not None and layer_type in parameters:
        parameters = parameters.section(layer_type)
    parameters = parameters.with_defaults(
        rope_theta=config.positive("rope_theta", theta),
        partial_rotary_factor=config.positive("partial_rotary_factor", 1.0),
        original_max_position_embeddings=config.optional_integer("original_max_position_embeddings"),
    )
    kind = _kind(parameters)
    kind = renamed.get(kind, kind)
    if kind not in _KINDS:
        raise ConfigError(f"{config.place}: rope_type {kind!r} is not supported, only {', '.join(sorted(_KINDS))}")
    part = 1.0 if kind == "proportional" else parameters.positive("partial_rotary_factor")
    rotary_size = int(head_size * part)
    if rotary_size % 2 or not 0 < rotary_size <= head_size:
        raise ConfigError(f"{config.place}: RoPE of {rotary_size} of a head's {head_size} dimensions is not supported")
    try:
        return _KINDS[kind](parameters, rotary_size, config.integer("max_position_embeddings"))
    except ArithmeticError as error:
        raise ConfigError(f"{config.place}: the parameters of RoPE cannot be computed with: {error}") from None


def rope_parameters(config: Config) -> Config:
    """The RoPE section of a configuration; empty if there is none.

    An `original_max_position_embeddings` beside the section wins over the one in it, as in transformers and vLLM.
    """
    section = config.section(_section_name(config))
    original = config.optional_integer("original_max_position_embeddings")
    if original is None or not len(section) or _kind(section) == "dynamic":
        return section
    return section.replaced(original_max_position_embeddings=original)


def with_rope_parameters(config: Config, **changes: Any) -> Config:
    """A copy with other values in the RoPE section."""
    return config.with_section(_section_name(config), **changes)


def longest_context(config: Config) -> int:
    """The longest context of the model, with the scaling of its RoPE, as vLLM computes it."""
    context = config.integer("max_position_embeddings")
    parameters = rope_parameters(config)
    kind = _kind(parameters)
    if kind in {"linear", "dynamic"}:
        return _context(context * parameters.positive("factor"))
    if kind == "yarn" and "original_max_position_embeddings" in parameters and "factor" in parameters:
        stretched = parameters.positive("factor") * parameters.integer("original_max_position_embeddings")
        return max(context, _context(stretched))
    return context


def at_context(spec: ModelSpec, max_model_len: int) -> ModelSpec:
    """A copy of the model with each rotation fixed for contexts of up to `max_model_len`; no more can be chosen."""
    layers = tuple(_choosing(layer, max_model_len) for layer in spec.layers)
    try:
        ropes = tuple(_fixed(rope, max_model_len) for rope in spec.ropes)
        return msgspec.structs.replace(spec, layers=layers, ropes=ropes)
    except ArithmeticError as error:
        raise ConfigError(f"RoPE cannot be scaled to {max_model_len} tokens: {error}") from None


def _choosing(layer: LayerSpec, max_model_len: int) -> LayerSpec:
    """A copy of the layer whose index, if it has one, chooses at most as many tokens as there can be."""
    attention = layer.attention
    if attention is None or attention.index is None or attention.latent is None:
        return layer
    index = msgspec.structs.replace(attention.index, count=min(attention.index.count, max_model_len))
    latent = msgspec.structs.replace(attention.latent, index=index)
    return msgspec.structs.replace(layer, attention=msgspec.structs.replace(attention, latent=latent))


def _context(stretched: float) -> int:
    if not 1 <= stretched < _LARGEST_CONTEXT:
        raise ConfigError(f"RoPE stretches the context to {stretched:g} tokens, not to 1 to {_LARGEST_CONTEXT}")
    return int(stretched)


def _section_name(config: Config) -> str:
    return "rope_parameters" if "rope_parameters" in config else "rope_scaling"


def _kind(parameters: Config) -> str:
    return parameters.text("rope_type", parameters.text("type", "default"))


def _fixed(rope: RopeSpec, max_model_len: int) -> RopeSpec:
    longer, frequencies = rope.longer, rope.inverse_frequencies
    if longer is not None and max_model_len > longer.original_length:
        match longer:
            case DynamicRope():
                size, factor = rope.rotary_size, longer.factor
                stretch = factor * max_model_len / longer.original_length - (factor - 1)
                frequencies = _base_frequencies(longer.theta * stretch ** (size / (size - 2)), size)
            case LongRope():
                frequencies = longer.inverse_frequencies
    return msgspec.structs.replace(rope, inverse_frequencies=frequencies, longer=None)


def _default(parameters: Config, size: int, _: int) -> RopeSpec:
    return RopeSpec(rotary_size=size, inverse_frequencies=_base_frequencies(_theta(parameters), size))


def _linear(parameters: Config, size: int, _: int) -> RopeSpec:
    factor = parameters.positive("factor")
    base = _base_frequencies(_theta(parameters), size)
    return RopeSpec(rotary_size=size, inverse_frequencies=tuple(_float32(frequency / factor) for frequency in base))


def _dynamic(parameters: Config, size: int, context: int) -> RopeSpec:
    theta, original = _theta(parameters), parameters.integer("original_max_position_embeddings", context)
    if size < 4:
        raise ConfigError(f"{parameters.place}: dynamic RoPE of {size} dimensions is not defined")
    longer = DynamicRope(theta=theta, factor=parameters.positive("factor"), original_length=original)
    return RopeSpec(rotary_size=size, inverse_frequencies=_base_frequencies(theta, size), longer=longer)


def _llama3(parameters: Config, size: int, context: int) -> RopeSpec:
    """Divide low frequencies by the factor, keep high ones, interpolate between (Llama 3.1)."""
    factor, original = parameters.positive("factor"), parameters.integer("original_max_position_embeddings", context)
    low, high = parameters.positive("low_freq_factor"), parameters.positive("high_freq_factor")
    if high < low:
        raise ConfigError(f"{parameters.place}: high_freq_factor {high} must be at least low_freq_factor, {low}")

    def scaled(frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            return frequency
        if wavelength > original / low:
            return frequency / factor
        smooth = (original / wavelength - low) / (high - low)
        return (1 - smooth) * frequency / factor + smooth * frequency

    base = _base_frequencies(_theta(parameters), size)
    return RopeSpec(rotary_size=size, inverse_frequencies=tuple(_float32(scaled(frequency)) for frequency in base))


def _yarn(parameters: Config, size: int, context: int) -> RopeSpec:
    """Interpolate low frequencies, extrapolate high ones (YaRN, arXiv 2309.00071)."""
    theta, original = _theta(parameters), parameters.integer("original_max_position_embeddings", context)
    factor = parameters.positive("factor", context / original)

    def dimension_of(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_of(parameters.positive("beta_fast", 32))
    high = dimension_of(parameters.positive("beta_slow", 1))
    if parameters.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low if high != low else 0.001

    def scaled(index: int, frequency: float) -> float:
        extrapolated = 1 - min(max((index - low) / width, 0), 1)
        return frequency / factor * (1 - extrapolated) + frequency * extrapolated

    base = _base_frequencies(theta, size)
    return RopeSpec(
        rotary_size=size,
        inverse_frequencies=tuple(_float32(scaled(index, frequency)) for index, frequency in enumerate(base)),
        attention_factor=_yarn_attention_factor(parameters, factor),
    )


def _yarn_attention_factor(parameters: Config, factor: float) -> float:
    if "attention_factor" in parameters:
        return parameters.positive("attention_factor")

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    mscale, mscale_all = parameters.number("mscale", 0), parameters.number("mscale_all_dim", 0)
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1)


def _longrope(parameters: Config, size: int, context: int) -> RopeSpec:
    """Scale each frequency by its own factor, with a second set for long contexts (LongRoPE, arXiv 2402.13753)."""
    theta, original = _theta(parameters), parameters.integer("original_max_position_embeddings", context)
    factor = parameters.positive("factor", context / original)
    attention_factor = 1.0
    if "attention_factor" in parameters:
        attention_factor = parameters.positive("attention_factor")
    elif factor > 1:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = (
        tuple(
            _float32(1 / (scale * _power(theta, size, index)))
            for index, scale in enumerate(parameters.numbers(name, size // 2))
        )
        for name in ("short_factor", "long_factor")
    )
    return RopeSpec(
        rotary_size=size,
        inverse_frequencies=short,
        attention_factor=attention_factor,
        longer=LongRope(inverse_frequencies=long, original_length=original),
    )


def _proportional(parameters: Config, size: int, _: int) -> RopeSpec:
    """Rotate a part of the pairs of the whole head, with the frequencies of all of them (Gemma 4)."""
    rotated = int(parameters.positive("partial_rotary_factor") * size // 2)
    if rotated > size // 2:
        raise parameters.error("partial_rotary_factor", parameters.value("partial_rotary_factor"), "at most 1")
    factor, base = parameters.positive("factor", 1.0), _base_frequencies(_theta(parameters), size)[:rotated]
    frequencies = (*(_float32(frequency / factor) for frequency in base), *(0.0,) * (size // 2 - rotated))
    return RopeSpec(rotary_size=size, inverse_frequencies=frequencies)


def _factors(parameters: Config, size: int, _: int) -> RopeSpec:
    """Divide each frequency by its own divisor, from the tensor rope_freqs.weight of GGUF files."""
    base = _base_frequencies(_theta(parameters), size)
    factors = parameters.numbers("factors", size // 2)
    frequencies = tuple(_float32(frequency / factor) for frequency, factor in zip(base, factors, strict=True))
    return RopeSpec(rotary_size=size, inverse_frequencies=frequencies)


_KINDS: dict[str, Callable[[Config, int, int], RopeSpec]] = {
    "default": _default,
    "mrope": _default,  # parts of a head rotate by other coordinates of an image, which are one position of a text
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "factors": _factors,
    "proportional": _proportional,
}


def _base_frequencies(theta: float, size: int) -> Frequencies:
    """`theta ** (-2i / size)`, rounded to float32 where torch rounds, so that the angles equal torch's."""
    return tuple(_float32(1 / _power(theta, size, index)) for index in range(size // 2))


def _power(theta: float, size: int, index: int) -> float:
    return _float32(theta ** _float32(2 * index / size))


def _theta(parameters: Config) -> float:
    theta = parameters.positive("rope_theta")
    if not 1 < theta < _LARGEST_THETA:
        raise parameters.error("rope_theta", theta, f"a number above 1 and below {_LARGEST_THETA:g}")
    return theta


def _float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise ConfigError(f"the parameters of RoPE give a frequency of {value}, which is not a float32")
    return rounded
