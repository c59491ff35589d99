"""Settings with several spellings, overrides of them, and architectures that are named otherwise or not at all."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pyllm.checkpoint.model_config import read_model_config
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import ConfigError
from tests.tiny_model import write_tiny_model

PLAIN = {"rope_type": "default", "rope_theta": 5e5}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def config_of(folder: Path, overrides: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The fields of a config.json of these and of some that every model has."""
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]} | fields))
    return read_model_config(folder, overrides).fields


def frequencies(checkpoint: Checkpoint) -> torch.Tensor:
    return torch.tensor(checkpoint.spec.ropes[0].inverse_frequencies)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("as_override", [True, False])
@pytest.mark.parametrize("scaling", [YARN, {"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 3.0}])
def test_rope_scaling_wins_over_rope_parameters(tmp_path: Path, scaling: dict[str, Any], as_override: bool) -> None:
    added = {"rope_scaling": scaling}
    folder = write_tiny_model(tmp_path, rope_theta=None, rope_parameters=PLAIN, **({} if as_override else added))
    found = read_checkpoint(folder, overrides=added if as_override else {})
    kind = scaling.get("rope_type") or scaling["type"]
    config = LlamaConfig(head_dim=16, max_position_embeddings=512, rope_theta=5e5, rope_scaling=dict(scaling))
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=512)
    torch.testing.assert_close(frequencies(found), expected, rtol=1e-6, atol=0)
    assert found.spec.ropes[0].attention_factor == pytest.approx(factor)
    assert found.spec.max_position_embeddings == int(512 * scaling["factor"])


@pytest.mark.parametrize("nothing", [{}, None])
def test_an_empty_rope_scaling_changes_nothing(tmp_path: Path, nothing: object) -> None:
    assert config_of(tmp_path, rope_parameters=PLAIN, rope_scaling=nothing)["rope_parameters"] == PLAIN


def test_of_layers_with_parameters_of_their_own_it_is_about_full_attention(tmp_path: Path) -> None:
    own = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": PLAIN}
    found = config_of(tmp_path, rope_parameters=own, rope_scaling={"type": "linear", "factor": 8.0})
    full = {"type": "linear", "rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    assert found["rope_parameters"] == {"full_attention": full, "sliding_attention": PLAIN}
    assert "rope_scaling" not in found


def test_what_stands_beside_the_sections_stays_the_base(tmp_path: Path) -> None:
    found = config_of(tmp_path, rope_parameters=PLAIN, rope_theta=7e5, rope_scaling=YARN)
    assert (found["rope_theta"], found["rope_parameters"]) == (7e5, YARN)


@pytest.mark.parametrize("section", ["rope_parameters", "rope_scaling"])
def test_an_override_wins_over_every_spelling_in_the_file(tmp_path: Path, section: str) -> None:
    fields: dict[str, Any] = {section: {"type": "linear", "factor": 2.0, "rope_theta": 5e5}, "num_local_experts": 4}
    found = config_of(tmp_path, {"rope_parameters": YARN | {"rope_theta": 1e6}, "num_experts": 8}, **fields)
    assert found["rope_parameters"] == YARN | {"rope_theta": 1e6}
    assert not {"rope_scaling", "num_local_experts"} & found.keys()
    found = config_of(tmp_path, {"rope_theta": 1e6}, **fields)
    assert (found["rope_theta"], found[section]) == (1e6, {"type": "linear", "factor": 2.0})


def test_an_override_without_a_base_leaves_that_of_the_file(tmp_path: Path) -> None:
    found = config_of(tmp_path, {"rope_parameters": YARN}, rope_parameters=PLAIN)
    assert found["rope_parameters"] == YARN | {"rope_theta": 5e5}


def test_it_reaches_the_text_model_within(tmp_path: Path) -> None:
    text = {"rope_parameters": PLAIN, "num_hidden_layers": 3}
    found = config_of(tmp_path, {"rope_scaling": YARN, "text_config": {"vocab_size": 9}}, text_config=text)
    wanted = {"rope_parameters": YARN | {"rope_theta": 5e5}, "num_hidden_layers": 3, "vocab_size": 9}
    assert found["text_config"] == wanted


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling", "text_config", "architectures", "model_type"])
@pytest.mark.parametrize("value", [7, "x", [], [3], {"a": 1}, None])
def test_overrides_of_any_kind_end_in_no_other_error(tmp_path: Path, name: str, value: object) -> None:
    folder = write_tiny_model(tmp_path, rope_parameters=PLAIN, text_config={"rope_parameters": PLAIN})
    with suppress(ConfigError):
        read_checkpoint(folder, overrides={name: value})


@pytest.mark.parametrize("named", [None, [], ["LLaMAForCausalLM"], ["LlamaModel"], "LlamaForCausalLM", ""])
def test_an_architecture_may_be_spelled_otherwise_or_not_at_all(tmp_path: Path, named: object) -> None:
    expected = read_checkpoint(write_tiny_model(tmp_path / "named"))
    found = read_checkpoint(write_tiny_model(tmp_path / "other", architectures=named))
    assert found.spec == expected.spec
    assert not found.embedding.is_only_use


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("LlamaModel", "LlamaForCausalLM"),
        ("FSDPQwen3ForCausalLM", "Qwen3ForCausalLM"),
        ("MistralModel", "MistralForCausalLM"),
        ("Qwen3Model", "Qwen3ForCausalLM"),
        ("Gemma3nTextModel", "Gemma3nForCausalLM"),
        ("MixtralModel", "MixtralForCausalLM"),
        ("BertModel", "BertModel"),
        ("GPT2LMHeadModel", "GPT2LMHeadModel"),
        ("LlamaForSequenceClassification", "LlamaForCausalLM"),
        ("BertForSequenceClassification", "BertModel"),
        ("DebertaV2ForSequenceClassification", "DebertaV2ForSequenceClassification"),
    ],
)
def test_classes_without_a_head(tmp_path: Path, named: str, meant: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [named]}))
    found = read_model_config(tmp_path)
    is_classifier = named.endswith("ForSequenceClassification")
    has_head = not is_classifier and ("For" in named or "LMHead" in named)
    assert found == ({"architectures": [meant]}, has_head, is_classifier)


@pytest.mark.parametrize(
    ("model_type", "meant"),
    [("qwen3_moe", "Qwen3MoeForCausalLM"), ("gpt_oss", "GptOssForCausalLM"), ("gemma3_text", "Gemma3ForCausalLM")],
)
def test_types_of_models(tmp_path: Path, model_type: str, meant: str) -> None:
    assert config_of(tmp_path, architectures=None, model_type=model_type)["architectures"] == [meant]


def test_a_type_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, architectures=None, model_type="nothing")
    with pytest.raises(ConfigError, match="names no architecture, and none of its model_type 'nothing' is known"):
        read_checkpoint(folder)


def test_a_model_without_a_head_is_for_embeddings(tmp_path: Path) -> None:
    """As sentence-transformers saves it: without the head, and without what stands before the names."""
    folder = Path(write_tiny_model(tmp_path, tied=False, architectures=["LlamaModel"]))
    tensors = load_file(folder / "model.safetensors")
    head: np.ndarray = tensors.pop("lm_head.weight")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert read_checkpoint(str(folder)).embedding.is_only_use
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
    assert not read_checkpoint(str(folder)).embedding.is_only_use
