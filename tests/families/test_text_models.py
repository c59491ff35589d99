"""The text model within a model for text and images: found under its names, and what is left out is told."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from tests.families.test_oracle import Sequences, expected_logits
from tests.families.tiny_families import PROMPT, write_tiny_family
from tests.plans import Row
from tests.tiny_model import write_tokenizer
from tests.workers.engine import loaded_runner


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
    assert found.spec == text.spec
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


_TEXT = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 257,
}
_TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_TOWER |= {"image_size": 8, "patch_size": 4}
_DEEP = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32}
_EARS = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 8, "d_model": 16}
_CONVOLUTIONS = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
_PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
_DEEPSEEK = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1}
# A class of transformers without "ForConditionalGeneration", its text model, and its encoder of images or sounds.
_WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llava": ({"model_type": "llama"}, _TOWER | {"model_type": "clip_vision_model"}),
    "SmolVLM": ({"model_type": "llama"}, _TOWER),
    "InternVL": ({"model_type": "qwen2"}, _TOWER | {"image_size": [8, 8], "patch_size": [4, 4]}),
    "Lfm2Vl": (_CONVOLUTIONS | {"model_type": "lfm2"}, _TOWER | {"model_type": "siglip2_vision_model"}),
    "Qwen2Audio": ({"model_type": "qwen2"}, _EARS | {"model_type": "qwen2_audio_encoder"}),
    "Qwen2VL": (
        {"rope_parameters": _SECTIONS | {"mrope_section": [1, 2, 1]}},
        _DEEP | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 1},
    ),
    "Qwen3VL": (
        {"head_dim": 16, "rope_parameters": _SECTIONS},
        _DEEP | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    ),
    "Qwen3VLMoe": (
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        | {"head_dim": 16, "rope_parameters": _SECTIONS},
        _DEEP | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    ),
    "Glm4vMoe": (
        _DEEPSEEK
        | {"n_group": 1, "topk_group": 1, "head_dim": 16, "rope_parameters": _PARTIAL | {"mrope_section": [2, 1, 1]}},
        _DEEP | {"image_size": 8},
    ),
    "Glm4v": ({"head_dim": 8, "rope_parameters": _PARTIAL}, _DEEP | {"image_size": 8}),
}


@pytest.mark.parametrize("name", _WHOLE)
def test_logits_equal_those_of_the_whole_model(tmp_path: Path, name: str) -> None:
    text, encoder = _WHOLE[name]
    encoders = {"audio_config" if "Audio" in name else "vision_config": encoder}
    check_logits(tmp_path, write_whole_model(tmp_path, name, text_config=_TEXT | text, **encoders))


def write_whole_model(folder: Path, name: str, **sections: Any) -> transformers.PreTrainedModel:
    """Write a model of a class of transformers with random weights, and a tokenizer."""
    config = getattr(transformers, f"{name}Config")(**sections)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).float().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def check_logits(folder: Path, model: transformers.PreTrainedModel) -> None:
    sequences = Sequences(loaded_runner(str(folder), num_blocks=256, max_model_len=128))
    sequences.start(0)
    np.testing.assert_allclose(sequences.logits(Row(0, PROMPT))[0], expected_logits(model), rtol=1e-4, atol=1e-4)


def test_a_section_with_little_beside_its_class_has_that_of_transformers(tmp_path: Path) -> None:
    folder = Path(write_tiny_family(tmp_path, "llama"))
    # As in llava-hf/llava-1.5-7b-hf.
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 264}
    outer = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text}
    (folder / "config.json").write_text(json.dumps(outer))
    spec = read_checkpoint(str(folder), has_dummy_weights=True).spec
    expected = transformers.LlavaConfig(text_config=text).text_config
    assert (spec.hidden_size, len(spec.layers)) == (expected.hidden_size, expected.num_hidden_layers)
    assert (spec.attention.heads, spec.attention.kv_heads) == (expected.num_attention_heads, 32)
    assert spec.layers[0].feed_forward is not None
    assert spec.layers[0].feed_forward.size == expected.intermediate_size


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("PaliGemmaForConditionalGeneration", "gemma"),
        ("MllamaForConditionalGeneration", "mllama_text_model"),
        ("Gemma4UnifiedAssistantForCausalLM", "gemma4_unified_text"),
    ],
)
def test_text_models_that_differ_are_refused(tmp_path: Path, architecture: str, kind: str) -> None:
    folder = Path(write_tiny_family(tmp_path, "gemma"))
    config = json.loads((folder / "config.json").read_text())
    outer = {"architectures": [architecture], "text_config": config | {"model_type": kind, "architectures": None}}
    (folder / "config.json").write_text(json.dumps(outer))
    with pytest.raises(ConfigError, match=f"architecture '{architecture}' is not supported"):
        read_checkpoint(str(folder))


def test_a_model_within_internvls_own_code_is_read(tmp_path: Path) -> None:
    folder = Path(write_tiny_family(tmp_path, "internlm2"))
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    text = read_checkpoint(str(folder))
    save_file({f"language_model.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    outer = {"architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "llm_config": config}
    (folder / "config.json").write_text(json.dumps(outer))
    found = read_checkpoint(str(folder))
    assert (found.spec, found.embedding, found.tokenizer) == (text.spec, text.embedding, text.tokenizer)
    assert [entry.name for entry in found.tensors] == [entry.name for entry in text.tensors]
    stretched = read_checkpoint(str(folder), overrides={"rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    assert stretched.spec.ropes != found.spec.ropes


@pytest.mark.parametrize(("outer", "inner"), [(False, True), (True, None), (None, True)])
def test_a_tied_head_may_be_told_outside_or_inside(tmp_path: Path, outer: bool | None, inner: bool | None) -> None:
    folder = Path(write_tiny_family(tmp_path, "qwen2"))
    text = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": inner, "architectures": None}
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text, "tie_word_embeddings": outer}
    (folder / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(str(folder)).spec.tie_word_embeddings


@pytest.mark.parametrize("is_straight", [False, True])
def test_a_square_matrix_of_experts_is_as_the_other_one(tmp_path: Path, is_straight: bool) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32}  # so that gate and up together are square
    text, encoder = _WHOLE["Qwen3VLMoe"]
    sections = {"text_config": _TEXT | text | sizes, "vision_config": encoder | {"out_hidden_size": 64}}
    model = write_whole_model(tmp_path, "Qwen3VLMoe", **sections)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if not is_straight:
        tensors |= {name: tensor.swapaxes(1, 2).copy() for name, tensor in tensors.items() if ".experts." in name}
    save_file(tensors, tmp_path / "model.safetensors")
    check_logits(tmp_path, model)


def test_a_classifier_that_is_a_text_model_needs_its_head(tmp_path: Path) -> None:
    folder = Path(write_tiny_family(tmp_path, "gemma3"))
    config = json.loads((folder / "config.json").read_text())
    inner = config | {"model_type": "gemma3_text", "architectures": None}
    outer = {"architectures": ["Gemma3ForSequenceClassification"], "text_config": inner}
    (folder / "config.json").write_text(json.dumps(outer))
    with pytest.raises(ConfigError, match="no head for classes"):
        read_checkpoint(str(folder))
