"""LoRA adapters of peft on each family: rows of several adapters in one step, against merged models of transformers."""

import copy
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from pyllm_kernels.tensors import Array
from transformers.pytorch_utils import Conv1D

from pyllm.checkpoint.lora import read_lora
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.registry import find_family
from pyllm.families.spec import ModelSpec
from pyllm.families.tensors import map_modules
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
    config = peft.LoraConfig(
        r=2 + seed, lora_alpha=3, use_rslora=seed % 2 == 1, target_modules=modules, init_lora_weights=False
    )
    torch.manual_seed(seed)
    model = peft.get_peft_model(copy.deepcopy(oracle(family)), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.4 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(str(folder))
    return expected_logits(model.merge_and_unload())


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
        np.testing.assert_allclose(found[slot], logits, rtol=1e-4, atol=1e-4)
    assert np.abs(expected[0] - expected[1]).max() > 0.1  # Adapters change the answers clearly.
