"""Adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyllm.checkpoint.adapters.matrix_pairs import Pair, adapter_of, add, matrices
from pyllm.checkpoint.gguf_header import read_header
from pyllm.checkpoint.types import LoraAdapter
from pyllm.errors import ConfigError
from pyllm.families.registry import find_family
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_names import TensorNames

_MATRIX = re.compile(r"(.+)\.weight\.lora_(a|b)")


def read_gguf_adapter(path: Path, spec: ModelSpec) -> LoraAdapter:
    """The adapter in a file. Raises ConfigError."""
    fields, tensors, _ = read_header(path)
    if (kind := fields.get("adapter.type")) != "lora":
        raise ConfigError(f"its adapter.type is {kind!r}, and must be 'lora': is it a model?")
    names = _gguf_names(fields, spec)
    pairs: dict[str, Pair] = {}
    for tensor in tensors:
        match = _MATRIX.fullmatch(tensor.name)
        if match is None:
            raise ConfigError(f"tensor {tensor.name!r} is not supported, only lora_a and lora_b of linear layers")
        add(pairs, match[1], "down" if match[2] == "a" else "up", tensor)
    alpha = float(fields.get("adapter.lora.alpha", 0))
    scales = {
        name: alpha / pair.down.shape[0] if alpha and pair.down is not None else 1.0 for name, pair in pairs.items()
    }
    return adapter_of(path, path, matrices(spec, names, pairs, scales))


def _gguf_names(fields: Mapping[str, Any], spec: ModelSpec) -> TensorNames:
    family, architecture = find_family(spec.architecture), fields.get("general.architecture")
    if family.gguf is None or architecture not in family.gguf.architectures:
        raise ConfigError(f"it is for models of {architecture}, and the model is a {spec.architecture}")
    return family.gguf.tensors
