"""Step 3.5, MiMo V2 and Nemotron Super from the fields that published files have; and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec
from tests.families.test_oracle import Sequences, expected_logits
from tests.families.tiny_families import PROMPT, oracle, write_tiny_family
from tests.plans import Row
from tests.workers.engine import loaded_runner

MIMO = {
    **dict.fromkeys(("layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps", "sliding_window")),
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1],
    "rope_theta": 5e6,
    "swa_rope_theta": 1e4,
    "partial_rotary_factor": 0.334,
    "layernorm_epsilon": 1e-5,
    "sliding_window_size": 23,
    "swa_head_dim": 24,
    "swa_v_head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "routed_scaling_factor": None,
    "n_shared_experts": None,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}


def read(folder: Path, **fields: Any) -> ModelSpec:
    """The model of a folder with other fields in its config.json; None leaves one out."""
    config = json.loads((folder / "config.json").read_text()) | fields
    present = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(present))
    return read_checkpoint(str(folder), has_dummy_weights=True).spec


def test_mimos_published_fields_are_those_of_transformers(tmp_path: Path) -> None:
    folder = Path(write_tiny_family(tmp_path, "mimo-v2"))
    expected = read(folder)
    found = read(folder, **MIMO)
    assert found == expected
    sliding = found.layers[1].own_attention
    assert (sliding.window, sliding.kv_heads, sliding.sinks, sliding.value_size, sliding.value_scale) == (
        *(24, 4, True, 16),
        0.707,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"swa_head_dim": 16},
        {"v_head_dim": 32},
        {"hybrid_layer_pattern": [0, 1, 2, 0]},
        {"moe_layer_freq": ["x"] * 4},
        {"add_full_attention_sink_bias": True},
        {"n_shared_experts": 1},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ],
)
def test_what_mimo_does_not_compute_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = Path(write_tiny_family(tmp_path, "mimo-v2"))
    named = "rope_type" if next(iter(fields)).startswith("rope") else next(iter(fields))
    with pytest.raises(ConfigError, match=named):
        read(folder, **MIMO | fields)


def test_steps_published_fields_are_those_of_transformers(tmp_path: Path) -> None:
    """With layers behind the last that predict further tokens, for which lists have numbers, too."""
    published = Path(write_tiny_family(tmp_path / "published", "step-3.5"))
    config = json.loads((published / "config.json").read_text())
    lists = {name: value for name, value in config.items() if isinstance(value, list) and len(value) == 4}
    longer = {name: [*value, value[0]] for name, value in lists.items()}
    found = read(published, **longer, num_nextn_predict_layers=1, moe_router_activation="sigmoid", use_rope_layers=[])
    config = json.loads((Path(write_tiny_family(tmp_path / "own", "step-3.7")) / "config.json").read_text())
    text = config["text_config"] | {"num_sliding_attention_heads": 8, "swiglu_limits_shared": [0.4, 0.0, 0.3, None]}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config | {"text_config": text}))
    expected = read_checkpoint(str(tmp_path / "own"), has_dummy_weights=True).spec
    assert found == msgspec.structs.replace(expected, architecture=found.architecture)


@pytest.mark.parametrize(
    "fields",
    [
        {"use_rope_layers": [1, 0, 1, 1]},
        {"hidden_act": "gelu"},
        {"moe_layers_enum": "1,2,x"},
        {"moe_layers_enum": 5},
        {"rms_norm_eps": 10**400},
        {"rope_theta": [1e4] * 3},
        {"mlp_layer_types": ["dense", "sparse", "other", "sparse"]},
        {"use_head_wise_attn_gate": False},
        {"swiglu_limits": [0, 0, -1, 0]},
        {"attention_other_setting": {"num_attention_heads": 8, "head_dim": 32}},
    ],
)
def test_what_step_does_not_compute_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = Path(write_tiny_family(tmp_path, "step-3.5"))
    named = next(iter(fields)).replace("attention_other_setting", "head_dim")
    with pytest.raises(ConfigError, match=named):
        read(folder, **fields)


@pytest.mark.parametrize("options", [{"kernel_backend": "reference"}, {"attention_backend": "sdpa"}])
def test_values_are_multiplied_by_every_backend(tmp_path: Path, options: dict[str, str]) -> None:
    folder = write_tiny_family(tmp_path, "mimo-v2")
    sequences = Sequences(loaded_runner(folder, num_blocks=256, max_model_len=128, **options))
    sequences.start(0)
    logits = sequences.logits(Row(0, PROMPT))[0]
    np.testing.assert_allclose(logits, expected_logits(oracle("mimo-v2")), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("part", "fields", "named"),
    [
        ("attention", {"replace_with_linear": True}, "replace_with_linear"),
        ("attention", {"n_heads_in_group": 3}, "n_heads_in_group"),
        ("attention", {"window_length": 64}, "window_length"),
        ("ffn", {"replace_with_linear": True}, "replace_with_linear"),
        ("ffn", {"ffn_mult": -1.0}, "ffn_mult"),
    ],
)
def test_what_unequal_layers_do_not_compute_is_refused(
    tmp_path: Path, part: str, fields: dict[str, Any], named: str
) -> None:
    folder = Path(write_tiny_family(tmp_path, "nemotron-super"))
    blocks = json.loads((folder / "config.json").read_text())["block_configs"]
    blocks[1][part] |= fields
    with pytest.raises(ConfigError, match=named):
        read(folder, block_configs=blocks)
