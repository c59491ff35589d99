"""The text model within a model for text and images: found under its names, and what is left out is told."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyllm.checkpoint.reader import read_checkpoint
from tests.families.tiny_families import write_tiny_family


@pytest.mark.parametrize("root", ["language_model.model.", "model.language_model."])
@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("gemma3n", "Gemma3nForConditionalGeneration"),
        ("gemma4", "Gemma4ForConditionalGeneration"),
        ("gemma4-unified", "Gemma4UnifiedForConditionalGeneration"),
        ("ministral-3", "Mistral3ForConditionalGeneration"),
        ("deepseek-v3", "KimiK25ForConditionalGeneration"),
    ],
)
def test_the_text_model_is_read_and_images_are_skipped(
    tmp_path: Path, family: str, architecture: str, root: str
) -> None:
    folder = Path(write_tiny_family(tmp_path, family))
    text = read_checkpoint(str(folder))
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    renamed = {name.replace("model.", root, 1): tensor for name, tensor in tensors.items()}
    images = {
        "vision_tower.encoder.weight": np.zeros((2, 2), np.float32),
        "multi_modal_projector.x": np.zeros(3, np.float32),
    }
    save_file(renamed | images, folder / "model.safetensors")
    outer = {"architectures": [architecture], "text_config": config | {"architectures": None}}
    outer["tie_word_embeddings"] = config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(outer))
    found = read_checkpoint(str(folder))
    assert found.spec == msgspec.structs.replace(text.spec, architecture=architecture)
    assert [entry.name for entry in found.tensors] == [entry.name for entry in text.tensors]
    assert found.skipped == ("multi_modal_projector.x", "vision_tower.encoder.weight")


def test_what_a_text_config_leaves_out_is_that_of_its_class(tmp_path: Path) -> None:
    folder = Path(write_tiny_family(tmp_path, "gemma3"))
    config = json.loads((folder / "config.json").read_text())
    for name in ("rms_norm_eps", "tie_word_embeddings", "rope_parameters"):
        config.pop(name, None)
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    (folder / "config.json").write_text(json.dumps(outer))
    spec = read_checkpoint(str(folder)).spec
    assert (spec.norm.epsilon, spec.tie_word_embeddings) == (1e-6, True)
    full, local = spec.ropes
    assert full.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 16))
    assert local.inverse_frequencies[1] == pytest.approx(1e4 ** (-2 / 16))
