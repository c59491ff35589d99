"""Reads the description of a LoRA adapter (arXiv 2106.09685): a folder of peft, or a GGUF file of llama.cpp.

Reads no weights but to digest them. Knows neither torch nor peft.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyllm.checkpoint.gguf_header import read_header
from pyllm.checkpoint.hub import Hub, find_model
from pyllm.checkpoint.hub_files import choose_gguf
from pyllm.checkpoint.json_files import read_json
from pyllm.checkpoint.model_name import HubName, parse_model
from pyllm.checkpoint.safetensors_files import read_file
from pyllm.checkpoint.types import AdapterMatrices, LoraAdapter
from pyllm.errors import ConfigError
from pyllm.families.registry import find_family
from pyllm.families.spec import ModelSpec, Shape
from pyllm.families.tensors import FileTensor, TensorNames, map_modules

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
_PEFT_MATRIX = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
_GGUF_MATRIX = re.compile(r"(.+)\.weight\.lora_(a|b)")
_FLOATS = ("F32", "F16", "BF16")
_DIGEST_BYTES = 16
# These change the model's own weights when the training begins, and a folder does not have the change.
_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


class _PeftConfig(msgspec.Struct):
    """The fields of adapter_config.json that change an answer."""

    peft_type: str = "LORA"
    lora_alpha: float = 8
    use_rslora: bool = False
    use_dora: bool = False
    use_qalora: bool = False
    lora_bias: bool = False
    bias: str = "none"
    init_lora_weights: Any = True
    alpha_pattern: dict[str, float] = {}
    modules_to_save: list[str] | None = None
    target_parameters: list[str] | None = None
    trainable_token_indices: Any = None
    alora_invocation_tokens: Any = None
    layer_replication: Any = None


def read_lora(path: Path, spec: ModelSpec) -> LoraAdapter:
    """The adapter in a folder of peft or in a GGUF file, for a model of `spec`.

    Raises:
        ConfigError: a file is missing or damaged, the adapter is of another model, or needs an unsupported feature.
    """
    if spec.transformers is not None:
        raise ConfigError(f"adapters need a native family, and transformers computes {spec.architecture}")
    read = _read_gguf if path.is_file() else _read_peft
    try:
        return read(path, spec)
    except OSError as error:
        raise ConfigError(f"the adapter {path} cannot be read: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"adapter {path}: {error}") from None


class _Pair(msgspec.Struct):
    down: FileTensor | None = None
    up: FileTensor | None = None


def _read_peft(folder: Path, spec: ModelSpec) -> LoraAdapter:
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"there is no {CONFIG}: give a folder as peft's `save_pretrained` writes it, or a GGUF file")
    config = read_json(folder / CONFIG, _PeftConfig)
    _check(config)
    weights = folder / WEIGHTS
    if not weights.is_file():
        pickled = (
            f" beside {PICKLED}, which may run code: save it as safetensors" if (folder / PICKLED).is_file() else ""
        )
        raise ConfigError(f"there is no {WEIGHTS}{pickled}")
    pairs: dict[str, _Pair] = {}
    for tensor in read_file(weights, 0):
        match = _PEFT_MATRIX.fullmatch(tensor.name)
        if match is None:
            raise ConfigError(f"tensor {tensor.name!r} is not supported, only lora_A and lora_B of linear layers")
        _add(pairs, match[1].removeprefix(_PREFIX), "down" if match[2] == "A" else "up", tensor)
    family = find_family(spec.architecture)
    scales = {name: _scale(config, name, pair) for name, pair in pairs.items()}
    digest = _digest([weights], msgspec.json.encode(config))
    return _adapter(folder, weights, digest, _matrices(spec, family.tensors, pairs, scales))


def _check(config: _PeftConfig) -> None:
    """Refuse what changes an answer and is not computed."""
    init = config.init_lora_weights
    refused = {
        f"peft_type {config.peft_type}": config.peft_type.upper() != "LORA",
        "use_dora (DoRA)": config.use_dora,
        "use_qalora": config.use_qalora,
        "lora_bias": config.lora_bias,
        f"bias {config.bias}": config.bias != "none",
        f"init_lora_weights {init} (save it with path_initial_model_for_weight_conversion)": isinstance(init, str)
        and init.lower().startswith(_CHANGING_INITS),
        f"modules_to_save {config.modules_to_save} (whole layers, such as embeddings)": bool(config.modules_to_save),
        f"target_parameters {config.target_parameters} (experts)": bool(config.target_parameters),
        "trainable_token_indices (embeddings)": bool(config.trainable_token_indices),
        "alora_invocation_tokens (activated LoRA)": bool(config.alora_invocation_tokens),
        "layer_replication": bool(config.layer_replication),
    }
    if found := [text for text, is_refused in refused.items() if is_refused]:
        raise ConfigError(f"{', '.join(found)} is not supported: merge the adapter into its model, and serve that")


def _scale(config: _PeftConfig, module: str, pair: _Pair) -> float:
    alpha = next(
        (value for key, value in config.alpha_pattern.items() if re.match(rf"(.*\.)?({key})$", module)),
        config.lora_alpha,
    )
    rank = 1 if pair.down is None else pair.down.shape[0]
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _read_gguf(path: Path, spec: ModelSpec) -> LoraAdapter:
    fields, tensors, _ = read_header(path)
    if (kind := fields.get("adapter.type")) != "lora":
        raise ConfigError(f"its adapter.type is {kind!r}, and must be 'lora': is it a model?")
    names = _gguf_names(fields, spec)
    pairs: dict[str, _Pair] = {}
    for tensor in tensors:
        match = _GGUF_MATRIX.fullmatch(tensor.name)
        if match is None:
            raise ConfigError(f"tensor {tensor.name!r} is not supported, only lora_a and lora_b of linear layers")
        _add(pairs, match[1], "down" if match[2] == "a" else "up", tensor)
    alpha = float(fields.get("adapter.lora.alpha", 0))
    scales = {
        name: alpha / pair.down.shape[0] if alpha and pair.down is not None else 1.0 for name, pair in pairs.items()
    }
    return _adapter(path, path, _digest([path]), _matrices(spec, names, pairs, scales))


def _gguf_names(fields: Mapping[str, Any], spec: ModelSpec) -> TensorNames:
    family, architecture = find_family(spec.architecture), fields.get("general.architecture")
    if family.gguf is None or architecture not in family.gguf.architectures:
        raise ConfigError(f"it is for models of {architecture}, and the model is a {spec.architecture}")
    return family.gguf.tensors


def _add(pairs: dict[str, _Pair], module: str, side: str, tensor: FileTensor) -> None:
    if len(tensor.shape) != 2:
        raise ConfigError(f"tensor {tensor.name!r} has the shape {tensor.shape}, and must be a matrix")
    if tensor.type not in _FLOATS:
        raise ConfigError(f"tensor {tensor.name!r} has type {tensor.type}, not one of {', '.join(_FLOATS)}")
    setattr(pairs.setdefault(module, _Pair()), side, tensor)


def _matrices(
    spec: ModelSpec, names: TensorNames, pairs: Mapping[str, _Pair], scales: Mapping[str, float]
) -> tuple[AdapterMatrices, ...]:
    shapes: dict[str, Shape] = {}
    found: dict[str, tuple[FileTensor, FileTensor]] = {}
    for name, pair in pairs.items():
        if pair.down is None or pair.up is None:
            raise ConfigError(f"{name} has only one of its two matrices")
        if pair.down.shape[0] != pair.up.shape[1] or not pair.down.shape[0]:
            raise ConfigError(f"the matrices of {name} have ranks {pair.down.shape[0]} and {pair.up.shape[1]}")
        shapes[name] = (pair.up.shape[0], pair.down.shape[1])
        found[name] = pair.down, pair.up
    if not found:
        raise ConfigError("it has no matrices")
    entries = map_modules(spec, names, shapes)
    modules = [entry.source.name.removesuffix(".weight") for entry in entries]
    return tuple(
        AdapterMatrices(entry, *found[module], scales[module]) for entry, module in zip(entries, modules, strict=True)
    )


def _adapter(path: Path, file: Path, digest: str, matrices: tuple[AdapterMatrices, ...]) -> LoraAdapter:
    rank = max(each.rank for each in matrices)
    return LoraAdapter(path=str(path), files=(str(file),), digest=digest, rank=rank, matrices=matrices)


def _digest(files: list[Path], configuration: bytes = b"") -> str:
    digest = hashlib.blake2b(configuration, digest_size=_DIGEST_BYTES)
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def find_lora(name: str, hub: Hub) -> Path:
    """The folder or GGUF file of an adapter: a path on this machine, or a repository of the hub, which is downloaded.

    Raises:
        ConfigError: it does not exist, or cannot be downloaded now.
    """
    place = parse_model(name)
    if isinstance(place, HubName):
        return find_model(place, hub, _collect)
    if not place.exists():
        raise ConfigError(f"there is no adapter {place}")
    return place


def _collect(name: HubName, names: Iterable[str], get: Callable[[str], Path]) -> Path:
    """Get the files of an adapter in a repository; returns its folder, or its GGUF file."""
    files = set(names)
    if CONFIG not in files or WEIGHTS not in files:
        if name.file or name.quantization or any(file.lower().endswith(".gguf") for file in files):
            return get(choose_gguf(name, files))
        pickled = f"; it has {PICKLED}, which may run code" if PICKLED in files else ""
        raise ConfigError(f"{name.repository} has no {CONFIG} and {WEIGHTS}{pickled}")
    get(WEIGHTS)
    return get(CONFIG).parent
