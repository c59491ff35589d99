"""The two matrices of each module that an adapter changes, and the parameters that these modules are."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pyllm.checkpoint.cache import weights_digest
from pyllm.checkpoint.types import AdapterMatrices, LoraAdapter
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec, Shape
from pyllm.families.tensor_map import map_modules
from pyllm.families.tensor_names import TensorNames
from pyllm.families.tensors import FileTensor

_FLOATS = ("F32", "F16", "BF16")


class Pair(msgspec.Struct):
    """The two matrices of a module, as far as they were found."""

    down: FileTensor | None = None
    up: FileTensor | None = None


def add(pairs: dict[str, Pair], module: str, side: str, tensor: FileTensor) -> None:
    """Add a matrix of a module; `side` is `down` or `up`.

    Raises:
        ConfigError: it is no matrix of floats.
    """
    if len(tensor.shape) != 2:
        raise ConfigError(f"tensor {tensor.name!r} has the shape {tensor.shape}, and must be a matrix")
    if tensor.type not in _FLOATS:
        raise ConfigError(f"tensor {tensor.name!r} has type {tensor.type}, not one of {', '.join(_FLOATS)}")
    setattr(pairs.setdefault(module, Pair()), side, tensor)


def matrices(
    spec: ModelSpec, names: TensorNames, pairs: Mapping[str, Pair], scales: Mapping[str, float]
) -> tuple[AdapterMatrices, ...]:
    """The matrices of each parameter that modules change, which have these scales.

    Raises:
        ConfigError: a module lacks one of its two, or is none of the model's, or has another shape.
    """
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


def adapter_of(
    path: Path, file: Path, matrices: tuple[AdapterMatrices, ...], configuration: bytes = b""
) -> LoraAdapter:
    """The adapter at `path` with these matrices, whose weights are in one file; reads all of it for a new digest."""
    digest = hashlib.blake2b(configuration, digest_size=16)
    digest.update(weights_digest((str(file),)).encode())
    rank = max(each.rank for each in matrices)
    return LoraAdapter(path=str(path), files=(str(file),), digest=digest.hexdigest(), rank=rank, matrices=matrices)
