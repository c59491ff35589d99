"""gpt-oss: what its config.json and its GGUF files describe, and its weights in each form beside transformers."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from pyllm_kernels.tensors import Array, numpy_dtype
from transformers import GptOssForCausalLM

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.gpt_oss import FAMILY
from pyllm.families.spec import ClampedGate
from pyllm.workers.model_runner import ModelRunner
from tests.families.test_oracle import Sequences, expected_logits
from tests.families.tiny_families import PROMPT, oracle, write_tiny_family
from tests.plans import Row
from tests.safetensors_arrays import load_file, save_file
from tests.tiny_gguf import write_gpt_oss_gguf
from tests.workers.engine import loaded_runner

# Of gpt-oss-20b's config.json, what has no default.
RELEASED = {
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


def logits_of(runner: ModelRunner) -> Array:
    sequences = Sequences(runner)
    sequences.start(0)
    return sequences.logits(Row(0, PROMPT))[0]


def test_what_a_config_leaves_out_is_as_in_transformers() -> None:
    spec = FAMILY.read(Config(RELEASED))
    windows = [layer.attention.window for layer in spec.layers]
    assert windows == [128, None] * 12
    attention, feed_forward = spec.attention, spec.layers[0].feed_forward
    assert (attention.heads, attention.kv_heads, attention.head_size) == (64, 8, 64)
    assert (attention.bias, attention.output_bias, attention.sinks) == (True, True, True)
    assert feed_forward.clamped_gate == ClampedGate(limit=7.0, alpha=1.702)
    assert feed_forward.bias
    older = {"rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False}}
    older["rope_scaling"]["original_max_position_embeddings"] = 4096
    assert FAMILY.read(Config(RELEASED | older)).ropes == spec.ropes
    older["rope_scaling"]["truncate"] = True
    assert FAMILY.read(Config(RELEASED | older)).ropes != spec.ropes


def test_a_layer_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer_types is 'chunked_attention'"):
        FAMILY.read(Config(RELEASED | {"layer_types": ["chunked_attention"] * 24}))


def test_files_of_bfloat16_give_the_logits_of_transformers(tmp_path: Path) -> None:
    source = Path(write_tiny_family(tmp_path / "tiny", "gpt-oss"))
    weights, bfloat16 = load_file(source / "model.safetensors"), numpy_dtype("bfloat16")
    tensors = {name: tensor.astype(bfloat16) for name, tensor in weights.items()}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    expected = expected_logits(GptOssForCausalLM.from_pretrained(source, dtype="float32"))
    logits = logits_of(loaded_runner(str(source), num_blocks=256, max_model_len=128))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    rounded = logits_of(loaded_runner(str(source), num_blocks=256, max_model_len=128, dtype="bfloat16"))
    # What is rounded between layers decides of a few tokens which experts they take.
    assert np.median(np.abs(rounded.astype(np.float32) - expected).max(-1)) < 0.4


def test_a_gguf_file_of_floats_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    path = write_gpt_oss_gguf(write_tiny_family(tmp_path / "tiny", "gpt-oss"), tmp_path / "tiny.gguf")
    checkpoint, folder = read_checkpoint(path), read_checkpoint(str(tmp_path / "tiny"))
    assert checkpoint.spec.ropes == folder.spec.ropes
    for ours, theirs in zip(checkpoint.spec.layers, folder.spec.layers, strict=True):
        assert (ours.attention, ours.feed_forward) == (theirs.attention, theirs.feed_forward)
    expected = expected_logits(oracle("gpt-oss"))
    logits = logits_of(loaded_runner(path, num_blocks=256, max_model_len=128))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["self_attn.sinks", "gate_up_proj_bias", "down_proj_bias", "router.bias"])
def test_logits_depend_on(tmp_path: Path, part: str) -> None:
    """The tests of logits would see a part that is left out."""
    model = oracle("gpt-oss")
    parameters = [parameter for name, parameter in model.named_parameters() if name.endswith(part)]
    kept = [parameter.data.clone() for parameter in parameters]
    whole = expected_logits(model)
    try:
        for parameter in parameters:
            parameter.data.zero_()
        without = expected_logits(model)
    finally:
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data.copy_(data)
    assert np.abs(whole - without).max() > 0.05


def test_mxfp4_of_a_gguf_file_stays_in_4_bits(tmp_path: Path) -> None:
    source = write_tiny_family(tmp_path / "tiny", "gpt-oss")
    path = write_gpt_oss_gguf(source, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.MXFP4)
    exact = logits_of(loaded_runner(path, num_blocks=256, max_model_len=128, quantization="none"))
    runner = loaded_runner(path, num_blocks=256, max_model_len=128, quantization="gguf")
    experts = [packed for packed in runner.model.matrices() if packed.format == "mxfp4"]
    assert len(experts) == 3 * 3
    assert sum(packed.nbytes for packed in experts) == 3 * 3 * 6 * 32 * 64 * 17 // 32
    # Inputs are rounded to 8 bits, which decides of a few tokens which experts they take.
    difference = np.abs(logits_of(runner) - exact).max(-1)
    assert 0 < np.median(difference) < 0.15
    assert np.quantile(difference, 0.8) < 0.3
