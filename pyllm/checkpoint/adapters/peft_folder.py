"""Adapters in folders as peft writes them: its configuration, and what of it is not computed here."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec

from pyllm.checkpoint.adapters.matrix_pairs import Pair, adapter_of, add, matrices
from pyllm.checkpoint.json_files import read_json
from pyllm.checkpoint.safetensors_files import read_file
from pyllm.checkpoint.types import LoraAdapter
from pyllm.errors import ConfigError
from pyllm.families.registry import find_family
from pyllm.families.spec import ModelSpec

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
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


def read_peft(folder: Path, spec: ModelSpec) -> LoraAdapter:
    """The adapter in a folder. Raises ConfigError."""
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
    pairs: dict[str, Pair] = {}
    for tensor in read_file(weights, 0):
        match = _MATRIX.fullmatch(tensor.name)
        if match is None:
            raise ConfigError(f"tensor {tensor.name!r} is not supported, only lora_A and lora_B of linear layers")
        add(pairs, match[1].removeprefix(_PREFIX), "down" if match[2] == "A" else "up", tensor)
    family = find_family(spec.architecture)
    scales = {name: _scale(config, name, pair) for name, pair in pairs.items()}
    found = matrices(spec, family.tensors, pairs, scales)
    return adapter_of(folder, weights, found, msgspec.json.encode(config))


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


def _scale(config: _PeftConfig, module: str, pair: Pair) -> float:
    patterns = config.alpha_pattern.items()
    try:
        alphas = (value for key, value in patterns if re.match(rf"(.*\.)?({key})$", module))
        alpha = next(alphas, config.lora_alpha)
    except re.error as error:
        raise ConfigError(f"alpha_pattern has a key that is no regular expression: {error}") from None
    rank = 1 if pair.down is None else pair.down.shape[0]
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)
