from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.workers.transformers_backend.probe import probe
from tests.tiers import full
from tests.tiny_model import write_tiny_model, write_tokenizer
from tests.tiny_quantised import SIZES, VARIANTS, write_quantised
from tests.workers.transformers_backend.table import answers, prompts, reference, try_model
from tests.workers.transformers_backend.tiny_configs import causal_models, tiny_model


@pytest.mark.parametrize(
    "name",
    [
        "GPT2LMHeadModel",  # positions that are learned, matrices with a column an output
        full("OPTForCausalLM"),
        "BartForCausalLM",  # which counts positions itself
        full("RobertaForCausalLM"),  # whose positions begin behind the padding
        "Gemma2ForCausalLM",  # windows, soft caps, an embedding of its own kind
        "DeepseekV3ForCausalLM",  # keys and values of different sizes
        full("MixtralForCausalLM"),  # experts, which transformers stacks
        "DbrxForCausalLM",  # experts in a loop over those that are chosen
        "GptOssForCausalLM",  # sinks
        "DiffLlamaForCausalLM",  # layers that attend twice
        full("CohereForCausalLM"),  # logits that are scaled
        full("GPTNeoXForCausalLM"),
        "FalconForCausalLM",  # attention of its own
    ],
)
def test_tokens_are_those_of_transformers(name: str) -> None:
    outcome = try_model(causal_models()[name])
    assert outcome.result == ("refused" if name == "FalconForCausalLM" else "equal"), outcome.reason


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaModel"])
def test_what_transformers_gives_logits_for_can_generate(tmp_path: Path, name: str) -> None:
    if name == "LlamaModel":
        write_tiny_model(tmp_path, architectures=[name])
    else:
        tiny_model(causal_models()[name]).save_pretrained(tmp_path)
        write_tokenizer(tmp_path)
    checkpoint = read_checkpoint(str(tmp_path), implementation="transformers", probe=probe)
    assert checkpoint.spec.transformers is not None
    assert not checkpoint.embedding.is_only_use


@pytest.mark.parametrize(
    "name", [full("awq"), "gptq in act-order", full("int8"), "fp8 of blocks", full("packed asymmetric")]
)
def test_quantised_matrices_stay_so(tmp_path: Path, name: str) -> None:
    """The tokens are those of our own family on the same folder, whose linear layers are the same."""
    variant, _ = VARIANTS[name]
    folder = Path(write_quantised(write_tiny_model(tmp_path / "tiny", **SIZES), tmp_path / "quantised", variant))
    assert answers(folder) == answers(folder, implementation="native")


def test_int8_of_floats(tmp_path: Path) -> None:
    folder = Path(write_tiny_model(tmp_path))
    assert answers(folder, quantization="int8") == answers(folder, implementation="native", quantization="int8")


def test_a_parameter_without_a_tensor_is_named(tmp_path: Path) -> None:
    tiny_model(causal_models()["LlamaForCausalLM"]).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"no tensor for 2 parameters: model\.layers\.1\.mlp\.up_proj\.weight, mo"):
        answers(tmp_path)


def test_a_tensor_with_a_number_that_is_not_finite_is_named(tmp_path: Path) -> None:
    tiny_model(causal_models()["LlamaForCausalLM"]).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"parameter 'model\.norm\.weight' has a NaN or an infinity"):
        answers(tmp_path)


@pytest.mark.parametrize("max_model_len", [64, 128])
def test_rotations_are_those_of_the_context_and_not_of_the_batch(tmp_path: Path, max_model_len: int) -> None:
    """As our own family has them, which chooses by the context, too."""
    factors = [[1.0 + 0.1 * index for index in range(8)], [4.0 + index for index in range(8)]]
    rope = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}
    rope |= dict(zip(("short_factor", "long_factor"), factors, strict=True))
    folder = Path(write_tiny_model(tmp_path, max_position_embeddings=256, rope_parameters=rope))
    found = answers(folder, max_model_len=max_model_len)
    assert found == answers(folder, implementation="native", max_model_len=max_model_len)


def test_the_reference_sees_its_prompt() -> None:
    model = tiny_model(causal_models()["LlamaForCausalLM"])
    first, second = (reference(model, prompt) for prompt in prompts())
    assert first != second
