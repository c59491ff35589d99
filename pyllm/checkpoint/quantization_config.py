"""The quantisation in a config.json: the method, and the schemes that modules may have.

Knows no tensor: the files show which modules are quantised. Two methods have several schemes: compressed-tensors
names the modules of each, and those of fp8 differ in the shapes of their tensors.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.tensor_names import OF_TEXT_MODELS

QuantizationMethod = Literal["compressed-tensors", "awq", "gptq", "fp8", "mxfp4", "bitnet"]

_ROOTS = ("", "model.", *OF_TEXT_MODELS)
_ROOT = re.compile("|".join(f"^{re.escape(root)}" for root in (*OF_TEXT_MODELS, "model.")))
_INSTEAD = "use the unquantised model, or a GGUF of it"


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """The storage format of some modules' weights; the layouts are those of `families.tensors.Quantised`."""

    layout: Literal["bytes", "packed", "gptq", "awq", "ternary"]
    element: Literal["int", "float8"] = "int"
    bits: int
    block: tuple[int, int]  # rows and columns that share a scale; 0: all of them
    symmetric: bool
    zero_offset: int = 0
    inverse_scales: bool = False
    has_group_index: bool = False  # columns were quantised in another order, which a tensor gives


class QuantizationConfig(msgspec.Struct, frozen=True):
    """The method, and its schemes: a module has the first that its tensors fit. MXFP4 has only one layout.

    - `targets`: the scheme of each target, as compressed-tensors names modules: a module's name, `re:` and a pattern
      that it begins with, or the name of a class. Without targets, any module may have any scheme.
    - `ignored`: modules without a scheme, named in the same ways.
    """

    method: QuantizationMethod
    schemes: tuple[Scheme, ...]
    targets: Mapping[str, Scheme] = {}
    ignored: tuple[str, ...] = ()

    def schemes_of(self, module: str) -> tuple[Scheme, ...]:
        """The schemes that a module may have. As in compressed-tensors, a target of its name has priority, then
        patterns in alphabetical order, then its class, whatever the order of the groups.

        Raises:
            ConfigError: no group has this module.
        """
        if len(set(self.schemes)) < 2 or not self.targets:
            return self.schemes
        if not _is_named(module, self.ignored) and _class_of(module) not in self.ignored:
            exact = sorted(_spellings(module) & self.targets.keys())
            patterns = (target for target in sorted(self.targets) if not exact and _is_named(module, (target,)))
            for target in (*exact, *patterns, _class_of(module)):
                if target in self.targets:
                    return (self.targets[target],)
        raise ConfigError(
            f"{module} is quantised, and config_groups have no scheme for it: their targets are "
            f"{', '.join(self.targets):.200}, and ignored are {', '.join(self.ignored) or 'none':.200}"
        )


def read_quantization_config(config: Config) -> QuantizationConfig | None:
    """The quantisation in a config.json or its `text_config`; None where weights are not quantised.

    Raises:
        ConfigError: the method, or a feature of it, is not supported; the text names it.
    """
    for place in (config, config.section("text_config")):
        for name in ("quantization_config", "compression_config"):
            if name in place:
                return _read(place.section(name))
    return None


def _read(config: Config) -> QuantizationConfig | None:
    method = config.text("quant_method", "")
    match method:
        case "compressed-tensors":
            return _compressed_tensors(config)
        case "awq":
            return QuantizationConfig("awq", (_awq(config),))
        case "gptq":
            return QuantizationConfig("gptq", (_gptq(config),))
        case "fp8":
            return QuantizationConfig("fp8", _fp8(config))
        case "mxfp4":
            return QuantizationConfig("mxfp4", ())
        case "bitnet":
            return QuantizationConfig("bitnet", (_bitnet(config),))
        case _:
            named = f"method {method!r}" if method else "no quant_method"
            raise ConfigError(
                f"{config.place} has {named}; supported are compressed-tensors, awq, gptq, fp8, mxfp4 "
                f"and bitnet: {_INSTEAD}"
            )


def _compressed_tensors(config: Config) -> QuantizationConfig:
    if config.section("sparsity_config").text("format", "dense") != "dense":
        raise _refusal(config, "sparsity_config")
    if len(config.section("transform_config").section("config_groups")):
        raise _refusal(config, "transform_config")
    formats, schemes = config.text("format", "dense"), []
    targets: dict[str, Scheme] = {}  # the last group wins where a target is in two
    groups = config.section("config_groups")
    for name in groups:
        group = groups.section(name)
        weights = group.section("weights")
        if len(weights):
            schemes.append(_of_group(weights, group.text("format", formats), group.place))
            targets |= dict.fromkeys(_names(group, "targets") or ("Linear",), schemes[-1])
    if not schemes:
        raise ConfigError(f"{config.place} has no config_groups with weights")
    return QuantizationConfig("compressed-tensors", tuple(schemes), targets, _names(config, "ignore"))


def _names(config: Config, name: str) -> tuple[str, ...]:
    """A list of modules, named as in compressed-tensors."""
    names = config.texts(name)
    for each in names:
        try:
            if each.startswith("re:"):
                re.compile(each.removeprefix("re:"))
        except re.error as error:
            raise ConfigError(f"{config.place}: {name}: {each!r:.80} is no pattern: {error}") from None
    return names


def _is_named(module: str, names: Sequence[str]) -> bool:
    """Whether `names` has the module, by its name in files or in transformers, which differ in their prefixes."""
    spelled = _spellings(module)
    patterns = [name.removeprefix("re:") for name in names if name.startswith("re:")]
    return not spelled.isdisjoint(names) or any(re.match(pattern, each) for pattern in patterns for each in spelled)


def _spellings(module: str) -> set[str]:
    bare = _ROOT.sub("", module)
    return {module, *(f"{root}{bare}" for root in _ROOTS)}


def _class_of(module: str) -> str:
    return "Embedding" if module.endswith("embed_tokens") else "Linear"


def _of_group(weights: Config, storage: str, place: str) -> Scheme:
    kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
    symmetric = weights.flag("symmetric", True)
    block = _block_of(weights)
    has_index = weights.text("actorder", "") in {"group", "dynamic"}
    if kind == "int" and storage == "pack-quantized" and bits in {4, 8} and block[0] == 1:
        return Scheme(layout="packed", bits=bits, block=block, symmetric=symmetric, has_group_index=has_index)
    if kind == "int" and storage in {"int-quantized", "naive-quantized"} and bits <= 8:
        return Scheme(layout="bytes", bits=8, block=block, symmetric=symmetric, has_group_index=has_index)
    if kind == "float" and storage in {"float-quantized", "naive-quantized"} and bits == 8 and symmetric:
        return Scheme(layout="bytes", element="float8", bits=8, block=block, symmetric=True)
    raise ConfigError(
        f"{place}: {kind} weights of {bits} bits, strategy {weights.text('strategy', 'tensor')!r}, in the format "
        f"{storage!r} are not supported; supported are pack-quantized (4 and 8 bits), int-quantized, float-quantized "
        f"and naive-quantized: {_INSTEAD}"
    )


def _block_of(weights: Config) -> tuple[int, int]:
    group_size = weights.integer("group_size", 0, least=-1)
    implied = {-1: "channel", 0: "tensor"}.get(group_size, "group")
    match strategy := weights.text("strategy", implied):
        case "tensor":
            return (0, 0)
        case "channel":
            return (1, 0)
        case "group" if group_size > 0:
            return (1, group_size)
        case "block":
            return _pair(weights, "block_structure")
        case _:
            raise weights.error("strategy", strategy, "tensor, channel, group (with a group_size) or block")


def _awq(config: Config) -> Scheme:
    if (version := config.text("version", "gemm")).lower() != "gemm":
        raise config.error("version", version, f"gemm; for others, {_INSTEAD}")
    if (backend := config.text("backend", "autoawq")) != "autoawq":
        raise config.error("backend", backend, f"autoawq; for others, {_INSTEAD}")
    config.with_defaults(zero_point=True).refuse_unless(zero_point=True)
    bits = config.integer("bits", config.integer("w_bit", 4))
    if bits != 4:
        raise config.error("bits", bits, f"4; for others, {_INSTEAD}")
    block = (1, _group_size(config, "group_size" if "group_size" in config else "q_group_size"))
    return Scheme(layout="awq", bits=4, block=block, symmetric=False)


def _gptq(config: Config) -> Scheme:
    bits = config.integer("bits")
    if bits not in {4, 8}:
        raise config.error("bits", bits, f"4 or 8; for others, {_INSTEAD}")
    checkpoint_format = config.text("checkpoint_format", "gptq")
    if checkpoint_format not in {"gptq", "gptq_v2"}:
        raise config.error("checkpoint_format", checkpoint_format, f"gptq or gptq_v2; for others, {_INSTEAD}")
    config.refuse_unless(is_marlin_format=False)
    overrides = config.section("dynamic")
    if not all(name.startswith("-:") for name in overrides):  # such entries name modules that are not quantised
        raise _refusal(config, "dynamic")
    # The first version of the format stores each zero point less one.
    return Scheme(
        layout="gptq",
        bits=bits,
        block=(1, _group_size(config, "group_size")),
        symmetric=config.flag("sym", True),
        zero_offset=int(checkpoint_format == "gptq"),
        has_group_index=config.flag("desc_act", False),
    )


def _fp8(config: Config) -> tuple[Scheme, ...]:
    if (kind := config.text("fmt", "e4m3")) not in {"e4m3", "float8_e4m3fn"}:
        raise config.error("fmt", kind, f"e4m3; for others, {_INSTEAD}")
    blocks = [(1, 0), (0, 0)] if "weight_block_size" not in config else [_pair(config, "weight_block_size")]
    return tuple(Scheme(layout="bytes", element="float8", bits=8, block=block, symmetric=True) for block in blocks)


def _bitnet(config: Config) -> Scheme:
    kind, mode = config.text("linear_class", "bitlinear"), config.text("quantization_mode", "offline")
    if kind not in {"bitlinear", "autobitlinear"}:
        raise config.error("linear_class", kind, "bitlinear or autobitlinear")
    if kind == "autobitlinear" and mode != "offline":
        raise config.error("quantization_mode", mode, f"offline; for others, {_INSTEAD}")
    config.refuse_unless(use_rms_norm=False)
    # The first of these layers divides by its scale.
    return Scheme(layout="ternary", bits=4, block=(0, 0), symmetric=True, inverse_scales=kind == "bitlinear")


def _group_size(config: Config, name: str) -> int:
    size = config.integer(name, 128, least=-1)
    if size == 0:
        raise config.error(name, size, "-1, or a whole number from 1")
    return max(0, size)


def _pair(config: Config, name: str) -> tuple[int, int]:
    rows, columns = (Config({name: size}, config.place).integer(name) for size in config.items(name, 2))
    return rows, columns


def _refusal(config: Config, name: str) -> ConfigError:
    return ConfigError(f"{config.place}: {name} is not supported: {_INSTEAD}")
