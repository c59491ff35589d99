"""A tiny LoRA adapter in a folder as peft writes it, without peft."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pyllm.checkpoint.adapters.peft_folder import CONFIG, WEIGHTS

PEFT = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "init_lora_weights": True}


def write_lora(
    folder: Path,
    modules: Mapping[str, tuple[int, int]],
    rank: int = 4,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    scale: float = 0.1,
) -> Path:
    """Write random matrices for modules with these shapes [out_features, in_features]."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, (out_features, in_features) in modules.items():
        for side, shape in (("A", (rank, in_features)), ("B", (out_features, rank))):
            numbers = generator.normal(0, scale, shape).astype(np.float32)
            tensors[f"base_model.model.{name}.lora_{side}.weight"] = numbers
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({**PEFT, "r": rank, **(changes or {})}))
    return folder
