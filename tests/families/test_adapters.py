"""LoRA adapters of peft on each family: rows of several adapters in one step, against merged models of transformers."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from pyllm_kernels.tensors import Array
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pyllm.checkpoint.adapters.adapter_files import read_lora
from pyllm.checkpoint.adapters.peft_folder import CONFIG, WEIGHTS
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.registry import find_family
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_map import map_modules
from tests.families.renamed_families import RENAMED
from tests.families.test_oracle import Sequences, expected_logits
from tests.families.tiny_families import FAMILIES, PROMPT, oracle, write_tiny_family
from tests.plans import Row
from tests.workers.adapters.loading import load_adapter
from tests.workers.engine import loaded_runner

# Stacked and grouped tensors, columns in place of rows, factors of weights, states, latents, shared experts.
_SOME = ("llama", "phi3", "gpt2", "gpt-neox", "qwen3-next", "deepseek-v2", "granite-4-mamba", "falcon-40b", "gemma4")


def families() -> list[object]:
    """Each family that has the names of transformers; most are of the tier `oracle`."""
    names = [name for name in FAMILIES if name not in RENAMED]
    return [name if name in _SOME else pytest.param(name, marks=pytest.mark.oracle) for name in names]


def modules_with_adapters(family: str, spec: ModelSpec) -> list[str]:
    """The linear layers of transformers that adapters may change here."""
    names = find_family(spec.architecture).tensors
    found = []
    for name, module in oracle(family).named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            shape = tuple(module.weight.shape)
            try:
                entries = map_modules(spec, names, {name: shape[::-1] if isinstance(module, Conv1D) else shape})
            except ConfigError:
                continue
            if not any(part in entry.name for entry in entries for part in (".streams.", ".augmented.")):
                found.append(name)
    return found


def write_adapter(folder: Path, family: str, modules: list[str], seed: int) -> Array:
    """Write an adapter of random numbers; gives the logits of the prompt in the merged model."""
    torch.manual_seed(seed)
    model, rank = copy.deepcopy(oracle(family)), 2 + seed
    fields = {"r": rank, "lora_alpha": 3, "use_rslora": seed % 2 == 1, "target_modules": modules}
    if not is_of_peft(family):
        return expected_logits(merged_by_hand(folder, model, fields, 3 / (rank**0.5 if seed % 2 else rank)))
    has_columns = any(isinstance(module, Conv1D) for module in model.modules())
    config = peft.LoraConfig(**fields, init_lora_weights=False, fan_in_fan_out=has_columns)
    adapted = peft.get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2 * parameter.shape[-1] ** -0.5)
    adapted.save_pretrained(str(folder))
    return expected_logits(adapted.merge_and_unload())


def is_of_peft(family: str) -> bool:
    """Whether peft adapts all of the linear layers: it takes names within experts for experts, and no Mamba's."""
    config = oracle(family).config
    names = [name for name in vars(config) if not name.startswith("_")]
    return not any("expert" in name or "mamba" in name for name in names) and "mamba" not in config.model_type


def merged_by_hand(folder: Path, model: PreTrainedModel, fields: dict[str, Any], scale: float) -> PreTrainedModel:
    """Write the files that peft would, and add the products to the model's weights."""
    folder.mkdir()
    tensors = {}
    for name in fields["target_modules"]:
        weight = model.get_submodule(name).weight
        down, up = (torch.randn(shape) * 0.2 * shape[1] ** -0.5 for shape in _shapes(weight, fields["r"]))
        weight.data += scale * up @ down
        tensors |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA"} | fields))
    return model


def _shapes(weight: torch.Tensor, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (rank, weight.shape[1]), (weight.shape[0], rank)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft reads it
@pytest.mark.parametrize("family", families())
def test_rows_of_several_adapters_equal_merged_models(tmp_path: Path, family: str) -> None:
    spec = read_checkpoint(write_tiny_family(tmp_path / "model", family)).spec
    modules = modules_with_adapters(family, spec)
    if spec.attention is not None and spec.attention.latent is not None:  # Absorbed matrices take none.
        modules = [name for name in modules if "kv_b_proj" not in name]
    assert len(modules) >= 2 * len(spec.layers)
    expected = [write_adapter(tmp_path / f"adapter{seed}", family, modules, seed) for seed in range(3)]
    runner = loaded_runner(
        str(tmp_path / "model"), num_blocks=256, max_model_len=128, enable_lora=True, max_loras=3, max_lora_rank=8
    )
    for seed in range(3):
        load_adapter(runner, 1 + seed, read_lora(tmp_path / f"adapter{seed}", spec))
    sequences = Sequences(runner)
    for slot, (place, number) in enumerate(((2, 1), (0, 2), (1, 3))):
        sequences.planner.assign(place, number)
        sequences.planner.start(slot, adapter=place)
    sequences.start(3)
    found = sequences.logits(*(Row(slot, PROMPT) for slot in range(4)))
    for slot, logits in enumerate([*expected, expected_logits(oracle(family))]):
        np.testing.assert_allclose(found[slot], logits, rtol=1e-4, atol=2e-4)
    assert np.abs(expected[0] - expected[1]).max() > 0.05  # Adapters change the answers clearly.
