"""Published configurations of Mamba's families: sizes, contexts, and fields that stand for others."""

from typing import Any

import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.parameter_shapes import num_parameters
from pyllm.families.registry import find_family
from pyllm.families.spec import ModelSpec, NormSpec, SelectiveScanSpec
from tests.families.record_gguf import FOLDER

MAMBA_130M = {"hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 24, "vocab_size": 50280}
FALCON_MAMBA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "expand": 16,
    "time_step_rank": 256,
    "state_size": 16,
    "num_hidden_layers": 64,
    "vocab_size": 65024,
    "tie_word_embeddings": False,
}
CODESTRAL_MAMBA = {
    "hidden_size": 4096,
    "num_heads": 128,
    "head_dim": 64,
    "n_groups": 8,
    "state_size": 128,
    "expand": 2,
    "num_hidden_layers": 64,
    "vocab_size": 32768,
    "time_step_limit": [0.0, {"__float__": "Infinity"}],
    "norm_before_gate": True,
    "rms_norm": True,
    "residual_in_fp32": True,
}
JAMBA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "vocab_size": 65536,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
    "num_experts": 16,
    "mamba_dt_rank": 256,
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
}


def read(architecture: str, fields: dict[str, Any]) -> ModelSpec:
    return find_family(architecture).read(Config({"architectures": [architecture]} | fields))


@pytest.mark.parametrize(
    ("architecture", "fields", "parameters"),
    [
        ("MambaForCausalLM", MAMBA_130M, 129_135_360),
        ("FalconMambaForCausalLM", FALCON_MAMBA_7B, 7_272_665_088),
        ("Mamba2ForCausalLM", CODESTRAL_MAMBA, 7_285_403_648),
        ("JambaForCausalLM", JAMBA, 51_570_323_328),
    ],
)
def test_published_models_have_their_parameters(architecture: str, fields: dict[str, Any], parameters: int) -> None:
    assert num_parameters(read(architecture, fields)) == parameters


def test_nothing_limits_a_context_without_attention() -> None:
    assert read("MambaForCausalLM", MAMBA_130M).max_position_embeddings == 1 << 20
    assert read("MambaForCausalLM", MAMBA_130M | {"max_position_embeddings": 64}).max_position_embeddings == 64


def test_a_gguf_file_of_falcon_mamba_says_that_it_has_norms() -> None:
    found = []
    for name in ("mamba", "falcon-mamba"):
        spec = read_checkpoint(str(FOLDER / f"{name}.gguf")).spec
        recurrence = spec.layers[0].recurrence
        assert isinstance(recurrence, SelectiveScanSpec)
        found.append((spec.architecture, recurrence.norm))
    epsilon = found[1][1].epsilon if found[1][1] is not None else 0.0
    assert found == [
        ("MambaForCausalLM", None),
        ("FalconMambaForCausalLM", NormSpec(epsilon=epsilon, weight=False)),
    ]
    assert epsilon == pytest.approx(0.01)


def test_the_first_layer_of_a_period_is_within_it() -> None:
    with pytest.raises(ConfigError, match="attn_layer_offset is 8; it must be less than attn_layer_period, 8"):
        read("JambaForCausalLM", JAMBA | {"attn_layer_offset": 8})
